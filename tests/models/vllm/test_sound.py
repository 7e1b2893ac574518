"""A model that hears: sound and embeddings as appends, the KV pool, turns through the stage engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("vllm", reason="the environment of the model is not here: `make env NAME=vllm`")

from models.vllm.rig import Driven, ids, rows, run, sound

from duologue.model.engine import Emission, Slot, StageRefused
from duologue.model.outputs import ModelOutput, decode_output
from duologue.models.vllm_stream import wire
from duologue.models.vllm_stream.context import Kind, Piece
from duologue.models.vllm_stream.options import MAX_WAITING, EngineOptions, TurnOptions

if TYPE_CHECKING:
    from models.vllm.counting import Counts

    from duologue.models.vllm_stream.engine import TurnEngine
    from duologue.models.vllm_stream.stream import Stream

pytestmark = [pytest.mark.models, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]

LIMIT, BLOCK, FIT = 1024, 128, 3
CONFIG = wire.encode(wire.SlotConfig("Answer.", 10, 0.0))
FINAL_ASK = wire.encode(wire.UnitHead(wire.FINAL | wire.ASK))
SOUND = wire.encode(wire.UnitHead())
SILENCE = wire.encode(wire.UnitHead(wire.CONTINUATION))


@pytest.fixture(scope="module")
def engine(counts: Counts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnEngine]:
    from models.vllm.tiny import write_audio

    from duologue.models.vllm_stream.engine import TurnEngine

    options = TurnOptions(
        model=str(write_audio(tmp_path_factory.mktemp("audio"))),
        context_tokens=LIMIT,
        engine=EngineOptions(
            dtype="float32",
            enforce_eager=True,
            chunk_tokens=4,
            scheduler="models.vllm.counting.CountingScheduler",
            # A cache for three of the four sessions, and the block that is vLLM's own.
            arguments={"num_gpu_blocks_override": FIT * LIMIT // BLOCK + 1},
        ),
    )
    engine = TurnEngine(options, FIT + 1)
    engine.wake = lambda: None
    engine.warm_up()
    yield engine
    engine.shut_down()


@pytest.fixture
def stream(engine: TurnEngine) -> Iterator[Stream]:
    from duologue.models.vllm_stream.stream import Stream

    stream = Stream(engine.host, LIMIT)
    yield stream
    run(engine.host, stream.close())


PAYLOADS: list[tuple[Kind, bytes, bytes, int]] = [
    ("pcm", sound(1, 1.0), sound(2, 1.0), 25),
    ("audio_embeds", rows(1, 9), rows(2, 9), 9),
    ("prompt_embeds", rows(1, 9), rows(2, 9), 9),
]


@pytest.mark.parametrize(("kind", "first", "second", "tokens"), PAYLOADS)
def test_an_append_is_computed_once_whatever_it_is(
    engine: TurnEngine, stream: Stream, counts: Counts, kind: Kind, first: bytes, second: bytes, tokens: int
) -> None:
    for payload in (first, second, first):
        run(engine.host, stream.take(Piece(ids(1, 3), kind, payload, ids(2, 2))))
    told: list[int] = []
    answered = run(engine.host, stream.answer(Piece(ids(3, 4)), 4, 0.0, told.extend))
    assert [step.tokens for step in counts.read(stream.name)][:4] == [tokens + 5] * 3 + [4]
    assert (answered.read, answered.cached) == (3 * (tokens + 5) + 4, 3 * (tokens + 5))
    assert [step.computed for step in counts.read(stream.name)][:4] == [n * (tokens + 5) for n in range(4)]


@pytest.mark.parametrize(("kind", "first", "second", "tokens"), PAYLOADS)
def test_a_request_that_is_made_again_hears_the_same(
    engine: TurnEngine, stream: Stream, kind: Kind, first: bytes, second: bytes, tokens: int
) -> None:
    """And another sound is another one: the model does hear."""
    from duologue.models.vllm_stream.stream import Stream

    async def hear(stream: Stream, payload: bytes, *, lose: bool) -> list[int]:
        told: list[int] = []
        await stream.take(Piece(ids(1, 3), kind, payload))
        await stream.take(Piece(ids(2, 3), kind, first))
        if lose:
            await stream.close()
        await stream.answer(Piece(ids(3, 4)), 8, 0.0, told.extend)
        await stream.close()
        return told

    kept = run(engine.host, hear(Stream(engine.host, LIMIT), second, lose=False))
    assert kept == run(engine.host, hear(Stream(engine.host, LIMIT), second, lose=True))
    assert kept != run(engine.host, hear(Stream(engine.host, LIMIT), first, lose=False))


def test_what_the_model_cannot_take_is_refused_by_code(engine: TurnEngine, stream: Stream) -> None:
    from duologue.models.vllm_stream.stream import StreamError

    with pytest.raises(StreamError, match="rows of 128") as refused:
        run(engine.host, stream.take(Piece((), "prompt_embeds", bytes(100))))
    assert refused.value.code == "bad_append"
    run(engine.host, stream.take(Piece(ids(1, 3))))


def test_a_session_that_does_not_fit_into_the_pool_is_refused_at_open(engine: TurnEngine) -> None:
    slots = [Slot(n, 1) for n in range(FIT + 1)]
    for slot in slots[:FIT]:
        engine.open(slot, CONFIG)
    with pytest.raises(StageRefused, match=f"holds {FIT * LIMIT} tokens") as refused:
        engine.open(slots[FIT], CONFIG)
    assert refused.value.code == "resource_exhausted"
    for slot in slots:
        engine.close(slot)


def test_what_waits_for_a_request_is_bounded(engine: TurnEngine) -> None:
    driven, slot = Driven(engine), Slot(0, 6)
    engine.open(slot, CONFIG)
    item = wire.encode(wire.UnitHead(item=wire.Text("user", "and")))
    failures = [driven.unit(slot, item)[0].failure for _ in range(MAX_WAITING * 2)]
    assert {failure.code for failure in failures if failure} == {"stage_backlog"}
    assert all(failure is None for failure in failures[:MAX_WAITING])
    engine.close(slot)


def test_of_a_turn_that_is_too_long_the_end_is_kept(engine: TurnEngine, stream: Stream) -> None:
    from duologue.models.vllm_stream.talk import Talk

    options = TurnOptions(model="-", clip_s=0.5, turn_audio_s=1.25)
    talk = Talk(engine.host, options, stream, wire.SlotConfig("", 8, 0.0))
    whole = sound(1, 2.0)
    assert [talk.hear(whole[at : at + 32_000]) for at in range(0, len(whole), 32_000)] == [True, True, False, False]
    clips = talk.end_turn()
    assert [len(clip) for clip in clips] == [32_000, 32_000, 16_000] and b"".join(clips) == whole[-80_000:]


def ended(emission: Emission) -> bool:
    output = decode_output(emission.head)
    return output.end_of_turn or bool(output.error_code)


def outputs(emissions: list[Emission]) -> list[ModelOutput]:
    return [decode_output(emission.head) for emission in emissions]


def test_turns_are_heard_and_answered_and_only_the_new_one_is_read(engine: TurnEngine) -> None:
    driven, slot = Driven(engine), Slot(0, 7)
    engine.open(slot, CONFIG)
    usages = []
    for turn in (1, 2):
        driven.unit(slot, SOUND, sound(turn, 0.2), turn=turn)
        assert driven.unit(slot, FINAL_ASK, sound(turn + 5, 0.2), turn=turn) == []
        assert driven.unit(slot, SILENCE, turn=turn) == [], "behind the one that asks"
        told = driven.until(ended)
        asked, silence = [emission for emission in told if emission.last]
        assert asked.unit < silence.unit and {emission.unit for emission in told[:-1]} == {asked.unit}
        told.remove(silence)
        assert {emission.turn_id for emission in told} == {turn}
        assert "".join(output.text for output in outputs(told))
        usages.append(outputs(told)[-1].usage)
    first, second = usages
    assert first is not None and second is not None
    assert first.cached_tokens < first.input_text_tokens < second.cached_tokens < second.input_text_tokens
    assert engine.usage().kv_tokens >= second.input_text_tokens
    engine.close(slot)


def test_a_turn_that_does_not_fit_is_refused_by_code_and_has_the_session_bound_anew(engine: TurnEngine) -> None:
    driven, slot = Driven(engine), Slot(0, 9)
    engine.open(slot, CONFIG)
    driven.unit(slot, SOUND, sound(1, 45.0))
    assert driven.unit(slot, FINAL_ASK, sound(2, 0.2)) == []
    [told] = outputs(driven.until(ended))
    assert (told.error_code, told.rebind) == ("context_exhausted", "context_rollover")
    engine.close(slot)


def test_a_cancel_ends_the_answer_and_keeps_what_was_heard(engine: TurnEngine, counts: Counts) -> None:
    driven, slot = Driven(engine), Slot(0, 8)
    engine.open(slot, wire.encode(wire.SlotConfig("Answer.", 400, 0.0)))
    driven.unit(slot, FINAL_ASK, sound(1, 0.4))
    driven.until(lambda emission: bool(decode_output(emission.head).text))
    engine.cancel(slot, 1)
    driven.unit(slot, FINAL_ASK, sound(2, 0.4), turn=2, epoch=1)
    told = driven.until(lambda emission: bool(decode_output(emission.head).text))
    assert {emission.turn_id for emission in told} == {2}
    steps = counts.read(counts.read()[-1].request.rsplit("-", 1)[0])
    assert sum(step.computed == 0 for step in steps) == 1, "one request, begun once"
    engine.close(slot)
