"""Resumable requests of a text model: what is computed, who is let in, what ends an append."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("vllm", reason="the environment of the model is not here: `make env NAME=vllm`")

from models.vllm.rig import all_of, ids, run, unstreamed

from duologue.model.engine import Slot, StageRefused
from duologue.models.vllm_stream import wire
from duologue.models.vllm_stream.context import Piece
from duologue.models.vllm_stream.options import EngineOptions, TurnOptions

if TYPE_CHECKING:
    from models.vllm.counting import Counts

    from duologue.models.vllm_stream.engine import TurnEngine
    from duologue.models.vllm_stream.stream import Stream

pytestmark = [pytest.mark.models, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]

SESSIONS, APPENDS, TOKENS, MADE, LIMIT = 8, 20, 25, 6, 1024
CONFIG = wire.encode(wire.SlotConfig("", 8, 0.0))


@pytest.fixture(scope="module")
def engine(counts: Counts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnEngine]:
    from models.vllm.tiny import write_text

    from duologue.models.vllm_stream.engine import TurnEngine

    options = TurnOptions(
        model=str(write_text(tmp_path_factory.mktemp("text"))),
        context_tokens=LIMIT,
        sound_token="",
        engine=EngineOptions(
            dtype="float32",
            enforce_eager=True,
            chunk_tokens=4,
            append_timeout_s=5.0,
            scheduler="models.vllm.counting.CountingScheduler",
        ),
    )
    engine = TurnEngine(options, SESSIONS)
    engine.wake = lambda: None
    engine.warm_up()
    yield engine
    engine.shut_down()


@pytest.fixture
def streams(engine: TurnEngine) -> Iterator[list[Stream]]:
    from duologue.models.vllm_stream.stream import Stream

    made = [Stream(engine.host, LIMIT) for _ in range(SESSIONS)]
    yield made
    run(engine.host, all_of([stream.close() for stream in made]))


async def talk(stream: Stream, seed: int, appends: int, count: int = MADE) -> list[list[int]]:
    """So many appends, and what was answered to each."""
    told: list[list[int]] = []
    for turn in range(appends):
        answer: list[int] = []
        await stream.answer(Piece(ids(100 * seed + turn, TOKENS)), count, 0.0, answer.extend)
        told.append(answer)
    return told


def test_only_what_is_appended_is_ever_computed(engine: TurnEngine, streams: list[Stream], counts: Counts) -> None:
    told = run(engine.host, all_of([talk(stream, n, APPENDS) for n, stream in enumerate(streams)]))
    for n, stream in enumerate(streams):
        steps = counts.read(stream.name)
        assert {len(answer) for answer in told[n]} <= set(range(MADE + 1))
        context = 0
        for step in steps:
            assert step.computed == context, "it goes on where it was, and reads nothing again"
            context += step.tokens
        assert context == stream.context.tokens
        # An append of 25, with the token in front that the cache lacked if the answer before was cut at its limit; a
        # chunk of an answer begins with that one alone; each token made after the first is one more.
        firsts = [step.tokens for step in steps if step.tokens > 1]
        assert len(firsts) == APPENDS and set(firsts) <= {TOKENS, TOKENS + 1}
        assert sum(step.tokens for step in steps) <= APPENDS * (TOKENS + MADE)


def test_a_ninth_session_is_refused_and_the_eight_go_on(engine: TurnEngine) -> None:
    slots = [Slot(n, 1) for n in range(SESSIONS)]
    for slot in slots:
        engine.open(slot, CONFIG)
    with pytest.raises(StageRefused, match="all 8 sequences") as refused:
        engine.open(Slot(SESSIONS, 1), CONFIG)
    assert refused.value.code == "resource_exhausted"
    engine.close(slots[3])
    engine.open(Slot(3, 2), CONFIG)
    for slot in [*slots, Slot(3, 2)]:
        engine.close(slot)
    assert engine.usage().slots_used == engine.usage().kv_tokens == 0


def test_the_last_unit_equals_one_request_over_everything(engine: TurnEngine, streams: list[Stream]) -> None:
    told = run(engine.host, talk(streams[0], 7, 4, 10))
    whole: list[int] = []
    for turn, answer in enumerate(told):
        whole += ids(700 + turn, TOKENS)
        assert run(engine.host, unstreamed(engine.host, whole, 10))[: len(answer)] == answer
        whole += answer
    assert len({tuple(answer) for answer in told}) == 4, "each is an answer to something else"


def test_an_answer_that_is_stopped_keeps_its_cache(engine: TurnEngine, streams: list[Stream], counts: Counts) -> None:
    stream, told = streams[0], list[int]()
    answered = run(engine.host, stream.answer(Piece(ids(1, 40)), 200, 0.0, told.extend, lambda: len(told) > 10))
    assert answered.made == len(told) == 12, "three chunks of four"
    again = run(engine.host, stream.answer(Piece(ids(2, 30)), 4, 0.0, told.extend))
    assert (again.read, again.cached) == (40 + 12 + 30, 40 + 11)
    assert counts.read(stream.name)[-4].tokens == 31, "the last of it, and the new ones"


def test_a_cancelled_answer_is_aborted_and_made_again_from_its_history(
    engine: TurnEngine, streams: list[Stream], counts: Counts
) -> None:
    stream, told = streams[0], list[int]()
    run(engine.host, stream.answer(Piece(ids(3, 40)), 4, 0.0, told.extend))
    first = stream.name
    far = threading.Event()

    def tell(made: Sequence[int]) -> None:
        told.extend(made)
        if len(told) > 20:
            far.set()

    future = engine.host.submit(stream.answer(Piece(ids(4, 10)), 600, 0.0, tell))
    assert far.wait(60)
    future.cancel()
    before = list(told)
    again = run(engine.host, stream.answer(Piece(ids(5, 10)), 4, 0.0, told.extend))
    assert stream.name != first and again.cached == 0
    replayed, live = counts.read(stream.name)[:2]
    assert replayed.computed == 0 and replayed.tokens + live.tokens == again.read
    assert len(told) == len(before) + again.made, "nothing of the cancelled answer comes later"
    assert again.read >= 40 + 4 + 10 + 10


def test_an_append_that_nobody_answers_fails_by_code_and_the_session_goes_on(
    engine: TurnEngine, streams: list[Stream]
) -> None:
    from duologue.models.vllm_stream.stream import Stream, StreamError

    run(engine.host, all_of([talk(stream, n, 1) for n, stream in enumerate(streams)]))
    one_more = Stream(engine.host, LIMIT)  # past admission: vLLM itself lets it wait for ever
    with pytest.raises(StreamError) as failed:
        run(engine.host, talk(one_more, 30, 1))
    assert failed.value.code == "append_timeout"
    run(engine.host, streams[0].close())
    [answer] = run(engine.host, talk(one_more, 30, 1))
    assert answer == run(engine.host, unstreamed_after_room(engine, streams[1]))[: len(answer)]
    run(engine.host, one_more.close())


async def unstreamed_after_room(engine: TurnEngine, stream: Stream) -> list[int]:
    await stream.close()
    return await unstreamed(engine.host, ids(3000, TOKENS), MADE)


def test_a_context_that_is_full_is_refused_before_it_is_appended(engine: TurnEngine, streams: list[Stream]) -> None:
    from duologue.models.vllm_stream.stream import StreamError

    with pytest.raises(StreamError) as full:
        run(engine.host, streams[0].answer(Piece(ids(1, LIMIT - 3)), 4, 0.0, lambda made: None))
    assert full.value.code == "context_exhausted" and streams[0].context.tokens == 0
    answered = run(engine.host, streams[0].answer(Piece(ids(1, LIMIT - 4)), 4, 0.0, lambda made: None))
    assert answered.made == 4 and streams[0].context.tokens == LIMIT - 1
