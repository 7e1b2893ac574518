"""The cascade's thinker on vLLM: a conversation is one request, of which each turn appends what is new."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("vllm", reason="the environment of the model is not here: `make env NAME=vllm`")

from duologue.model.engine import Slot, StageRefused
from duologue.models.cascade.engines.language import Ending, LanguageError
from duologue.models.cascade.settings import Settings, Thinker
from duologue.models.cascade.wire import Ask, ChatTurn
from duologue.models.vllm_stream.options import EngineOptions

if TYPE_CHECKING:
    from models.vllm.counting import Counts

    from duologue.models.cascade.engines.thinker import ThinkerEngine
    from duologue.models.cascade.engines.vllm_language import VllmLanguage

pytestmark = [pytest.mark.models, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]

SLOTS, LIMIT, BLOCK = 3, 1024, 128
SYSTEM = ChatTurn("system", "Be kind to everybody. " * 15)


class Asked:
    """Who asked (`language.Listener`)."""

    def __init__(self, far: int = 1_000_000) -> None:
        self.cancelled = False
        self.text = ""
        self.ending: Ending | None = None
        self.error: LanguageError | None = None
        self.done, self.far = threading.Event(), threading.Event()
        self._far = far

    def said(self, delta: str) -> None:
        self.text += delta
        if len(self.text) >= self._far:
            self.far.set()

    def ended(self, ending: Ending) -> None:
        self.ending = ending
        self.done.set()

    def failed(self, error: LanguageError) -> None:
        self.error = error
        self.done.set()

    @property
    def tokens(self) -> tuple[int, int, int]:
        """Read, of that from the cache, made."""
        assert self.done.wait(120) and self.error is None, self.error
        assert self.ending is not None and self.ending.usage is not None
        usage = self.ending.usage
        return usage.input_text_tokens, usage.cached_tokens, usage.output_text_tokens


@pytest.fixture(scope="module")
def engine(counts: Counts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThinkerEngine]:
    from models.vllm.tiny import write_text

    from duologue.models.cascade.engines.thinker import ThinkerEngine

    options = EngineOptions(
        dtype="float32",
        enforce_eager=True,
        chunk_tokens=8,
        prefix_caching=True,
        scheduler="models.vllm.counting.CountingScheduler",
        arguments={"num_gpu_blocks_override": 2 * LIMIT // BLOCK + 1},
    )
    thinker = Thinker(
        engine="vllm",
        model_path=str(write_text(tmp_path_factory.mktemp("text"))),
        context_tokens=LIMIT,
        max_tokens=20,
        vllm=options,
    )
    engine = ThinkerEngine(Settings(thinker=thinker), SLOTS)
    engine.wake = lambda: None
    engine.warm_up()
    yield engine
    engine.shut_down()


@pytest.fixture
def language(engine: ThinkerEngine) -> Iterator[VllmLanguage]:
    from duologue.models.cascade.engines.vllm_language import VllmLanguage

    model = engine._model
    assert isinstance(model, VllmLanguage)
    model.open(0)
    yield model
    model.leave(0)


def ask(language: VllmLanguage, turns: Sequence[ChatTurn], *, max_tokens: int = 20, far: int = 1_000_000) -> Asked:
    asked = Asked(far)
    language.start(0, Ask(tuple(turns), max_tokens, 0.0), asked)
    return asked


def user(text: str) -> ChatTurn:
    return ChatTurn("user", text)


def test_a_turn_appends_its_own_text_and_nothing_else(language: VllmLanguage, counts: Counts) -> None:
    turns = [SYSTEM, user("Hello.")]
    first = ask(language, turns)
    read, cached, made = first.tokens
    assert cached < read
    turns += [ChatTurn("assistant", " ".join(first.text.split())), user("And then?")]
    second = ask(language, turns)
    again, kept, _ = second.tokens
    assert kept == read + made - 1, "all but the last that was made is in the cache"
    assert again - kept < 40, "the end of the answer's turn, the user's, and the begin of the next"
    assert language.held_tokens() == again + second.tokens[2] - 1
    [appended] = [step for step in counts.read() if step.computed == kept]
    assert appended.tokens == again - kept, "the scheduler computed that and no more"


def test_what_was_not_heard_is_taken_out_by_a_request_anew(language: VllmLanguage) -> None:
    turns = [SYSTEM, user("Hello.")]
    first = ask(language, turns)
    read, _, _ = first.tokens
    half = first.text[: len(first.text) // 2]
    again = ask(language, [*turns, ChatTurn("assistant", half), user("Stop.")])
    _, cached, _ = again.tokens
    assert cached < read and cached % BLOCK == 0, "no more than whole blocks that prefix caching found"
    assert cached >= BLOCK, "and it did find the system's"


def test_a_barge_in_ends_the_answer_at_once(language: VllmLanguage) -> None:
    turns = [SYSTEM, user("Hello.")]
    first = ask(language, turns, max_tokens=400, far=10)
    assert first.far.wait(120)
    first.cancelled = True
    language.stop(first)
    again = ask(language, [*turns, ChatTurn("assistant", first.text[:5]), user("Stop.")])
    assert again.tokens[2] > 0
    assert not first.done.is_set(), "nobody is told of what was cancelled"


def test_a_history_without_its_oldest_turns_begins_anew(language: VllmLanguage) -> None:
    turns = [SYSTEM, user("Hello."), ChatTurn("assistant", "Hi."), user("And?")]
    ask(language, turns).tokens  # noqa: B018
    shorter = ask(language, [SYSTEM, user("And now?")])
    read, cached, _ = shorter.tokens
    assert cached % BLOCK == 0 and read < 400


def test_what_is_longer_than_the_context_is_refused_by_code(language: VllmLanguage) -> None:
    asked = ask(language, [user("word " * 3000)])
    assert asked.done.wait(120) and asked.error is not None
    assert asked.error.code == "context_exhausted"
    assert ask(language, [SYSTEM, user("Hello.")]).tokens[1] < LIMIT


def test_a_session_that_does_not_fit_is_refused_at_open(engine: ThinkerEngine) -> None:
    slots = [Slot(n, 1) for n in range(SLOTS)]
    for slot in slots[:2]:
        engine.open(slot, b"")
    with pytest.raises(StageRefused, match="the KV cache holds") as refused:
        engine.open(slots[2], b"")
    assert refused.value.code == "resource_exhausted"
    engine.close(slots[0])
    engine.close(slots[0])
    engine.open(slots[2], b"")
    for slot in slots:
        engine.close(slot)
    assert engine.usage().slots_used == engine.usage().kv_tokens == 0
