"""The engines one by one: places, failures, bounds, and a language model behind a URL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from unit.models.cascade.harness import PIPELINE, Engines, Talk

from duologue.hearing.voice_activity import FRAME, Stream, VoiceDetector
from duologue.model.engine import SESSION, Slot, StageEngine, StageRefused, StageUnit
from duologue.model.pipeline import PipelineError, load_pipeline
from duologue.models.cascade.engine import build
from duologue.models.cascade.engines.sounds import is_hum
from duologue.models.cascade.engines.speech import SpeechEngine
from duologue.models.cascade.engines.whisper import Whisper, split
from duologue.models.cascade.parts import RECOGNITION, VOICE_ACTIVITY, locate
from duologue.models.cascade.voices import RENDERINGS, say, silence
from duologue.models.cascade.wire import Clause, SlotConfig

pytestmark = pytest.mark.cascade
CONFIG = msgspec.msgpack.encode(SlotConfig())


def test_places_are_counted_refused_and_freed(engines: Engines) -> None:
    for engine in engines.engines.values():
        slots = [Slot(i, 1000 + i) for i in range(engine.usage().slots_total)]
        for slot in slots:
            engine.open(slot, CONFIG)
        assert engine.usage().slots_used == engine.usage().slots_total
        with pytest.raises(StageRefused) as refused:
            engine.open(Slot(len(slots), 1), CONFIG)
        assert refused.value.code == "resource_exhausted"
        for slot in (*slots, *slots):
            engine.close(slot)
        assert engine.usage().slots_used == 0
        assert engine.usage().state_bytes == 0


def test_the_stages_must_be_as_the_plugin_knows_them() -> None:
    spec = load_pipeline(PIPELINE)
    swapped = msgspec.structs.replace(spec, stages=tuple(reversed(spec.stages)))
    with pytest.raises(PipelineError, match="perception, recognition, thinker, speech"):
        build(swapped, 0)


def test_a_key_that_is_not_set_is_named() -> None:
    thinker = {"url": "http://localhost/v1", "model": "m", "api_key_env": "NO_SUCH_VARIABLE_HERE"}
    spec = msgspec.structs.replace(load_pipeline(PIPELINE), options={"thinker": thinker})
    with pytest.raises(PipelineError, match="NO_SUCH_VARIABLE_HERE"):
        build(spec, 2)


# -- ears -----------------------------------------------------------------------------------------------------


def test_company_and_the_size_of_pieces_change_nothing() -> None:
    detector = VoiceDetector(locate(VOICE_ACTIVITY, ""))
    sounds = [np.concatenate((silence(200), say(text), silence(300))) for text in ("Hello there.", "Stop!", "Okay.")]
    alone = [detector.advance([Stream()], [sound])[0] for sound in sounds]
    streams = [Stream() for _ in sounds]
    together: list[list[float]] = [[] for _ in sounds]
    for at in range(0, max(map(len, sounds)), 700):
        for got, new in zip(together, detector.advance(streams, [s[at : at + 700] for s in sounds]), strict=True):
            got += new
    for sound, one, other in zip(sounds, alone, together, strict=True):
        assert len(one) == len(sound) // FRAME
        assert np.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("rendering", RENDERINGS, ids=lambda r: r.name)
def test_a_hum_is_told_from_words(rendering: Any) -> None:
    assert is_hum(say("Mm-hm.", rendering))
    for text in ("Right.", "Okay.", "Stop!", "Wait.", "No.", "What?"):
        assert not is_hum(say(text, rendering)), text


def test_long_sound_is_split_and_nothing_is_lost() -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, 16_000 * 70).astype(np.float32)
    pieces = split(sound)
    assert np.array_equal(np.concatenate(pieces), sound)
    assert all(len(piece) <= 28 * 16_000 for piece in pieces)


def test_a_long_speech_is_recognised_to_its_end() -> None:
    whisper = Whisper(locate(RECOGNITION, ""), 1, -1.6, 0.8)
    sound = np.concatenate([np.concatenate((say(f"This is sentence number {n}."), silence(900))) for n in range(1, 13)])
    text = whisper.transcribe(sound)
    assert len(sound) > 30 * 16_000
    assert text.lower().count("sentence") >= 11


# -- voice ----------------------------------------------------------------------------------------------------


class Spokesman:
    """The speech engine with a voice of one's own, driven clause by clause."""

    def __init__(self, engine: SpeechEngine) -> None:
        self.engine = engine
        self.slot = Slot(0, 77)
        self.called = threading.Event()
        engine.wake = self.called.set
        engine.open(self.slot, b"")

    def clause(self, number: int, text: str, last: bool = False, unit: int = 5, **more: Any) -> list[Any]:
        head = msgspec.msgpack.encode(Clause(number, text, last, **more))
        emissions = list(self.engine.append_batch([StageUnit(self.slot, unit, 1, 0, 0, head, ())]))
        while self.engine.busy:
            assert self.called.wait(20)
            self.called.clear()
            emissions += self.engine.read()
        return emissions


@pytest.fixture
def spokesman(engines: Engines) -> Iterator[Spokesman]:
    engine = engines.engines[3]
    assert isinstance(engine, SpeechEngine)
    wake = engine.wake
    man = Spokesman(engine)
    yield man
    engine.close(man.slot)
    engine.wake = wake


def test_every_clause_is_settled_once_and_the_last_ends_the_turn(spokesman: Spokesman) -> None:
    texts = ("Well,", " here I am, and I have a lot to say.", "", "")
    settled = [
        sum(emission.last for emission in spokesman.clause(number, text, last=number == 3))
        for number, text in enumerate(texts)
    ]
    assert settled == [1, 1, 1, 1]
    assert spokesman.engine.usage().state_bytes == 0


def test_the_first_sound_does_not_wait_for_the_rest(spokesman: Spokesman) -> None:
    emissions = spokesman.clause(0, "Yes.")
    assert any(emission.frames for emission in emissions)


def test_a_broken_thinker_is_told_behind_its_words(spokesman: Spokesman) -> None:
    spokesman.clause(0, "Well,")
    emissions = spokesman.clause(1, "", True, error_code="thinker_failed", error="gone")
    assert [bool(emission.frames) for emission in emissions] == [True, False]
    assert emissions[-1].failure.code == "thinker_failed"


def test_nothing_to_say_is_a_failure_not_a_silence(spokesman: Spokesman) -> None:
    (emission,) = spokesman.clause(0, "", True)
    assert emission.failure.code == "empty_answer"


def test_a_voice_that_breaks_fails_once_and_the_place_lives(
    spokesman: Spokesman, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str, speed: float) -> None:
        raise RuntimeError("no voice")

    with monkeypatch.context() as patched:
        patched.setattr(spokesman.engine._voice, "say", broken)
        first = spokesman.clause(0, "Hello,")
        rest = [*spokesman.clause(1, " you."), *spokesman.clause(2, "", True)]
    assert [emission.failure.code for emission in first] == ["speech_failed"]
    assert all(emission.failure is None and emission.last and emission.to == SESSION for emission in rest)
    assert len(rest) == 2
    assert any(emission.frames for emission in spokesman.clause(0, "Hello there.", unit=6))


# -- a language model behind a URL ----------------------------------------------------------------------------


class Api(BaseHTTPRequestHandler):
    """As much of the OpenAI API as is needed. `plan`: what to do, by the last user message."""

    asked: ClassVar[list[dict[str, Any]]] = []
    keys: ClassVar[list[str | None]] = []
    closed = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        self.keys.append(self.headers["authorization"])
        plan = body["messages"][-1]["content"]
        if plan == "refuse":
            self.send_error(401)
            return
        self.send_response(200)
        self.end_headers()
        try:
            self._stream(plan)
        except (BrokenPipeError, ConnectionResetError):
            self.closed.set()

    def _stream(self, plan: str) -> None:
        if plan == "garbage":
            self.wfile.write(b"data: {]\n\n")
            return
        words = {"empty": [], "boundless": ["and on "] * 5000}.get(plan, ["It is ", "**fine**. ", "Good bye."])
        for word in words:
            chunk = {"choices": [{"delta": {"content": word}, "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        while plan == "endless":  # until the other side has gone
            self.wfile.write(b": still thinking\n\n")
            self.closed.wait(0.01)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def remote() -> Iterator[Engines]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    patch = pytest.MonkeyPatch()
    patch.setenv("CASCADE_TEST_KEY", "secret")
    url = f"http://127.0.0.1:{server.server_address[1]}/v1/"
    options = {"url": url, "model": "fine-model", "api_key_env": "CASCADE_TEST_KEY", "max_sentences": 1000}
    loaded = Engines(stages=(2, 3), thinker=options)
    yield loaded
    loaded.close()
    patch.undo()
    server.shutdown()
    server.server_close()
    thread.join()


def typed(remote: Engines, *texts: str) -> Talk:
    talk = Talk(remote)
    for text in texts:
        talk.type(text)
        talk.wait()
        talk._assistant(talk.answers[-1].text)
    talk.close()
    return talk


def test_a_url_answers_and_gets_the_history(remote: Engines) -> None:
    Api.asked.clear()
    talk = typed(remote, "Hello?", "And now?")
    assert [answer.text for answer in talk.answers] == ["It is fine. Good bye."] * 2
    assert talk.answers[0].pcm
    assert Api.keys[-1] == "Bearer secret"
    assert Api.asked[-1]["model"] == "fine-model"
    assert [m["content"] for m in Api.asked[-1]["messages"][1:]] == ["Hello?", "It is fine. Good bye.", "And now?"]
    assert Api.asked[-1]["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    ("plan", "code"), [("refuse", "thinker_failed"), ("garbage", "thinker_failed"), ("empty", "empty_answer")]
)
def test_what_goes_wrong_there_is_coded(remote: Engines, plan: str, code: str) -> None:
    (answer,) = typed(remote, plan).answers
    assert answer.done
    assert code in (answer.error_code, answer.failure.code if answer.failure else "")
    assert answer.failure is None or "secret" not in answer.failure.message


def test_a_cancel_closes_the_connection(remote: Engines) -> None:
    Api.closed.clear()
    talk = Talk(remote)
    talk.type("endless")
    while not talk.answers[-1].pcm:
        assert remote.called.wait(20)
        talk._pump()
    talk.cancel()
    assert Api.closed.wait(20)
    talk.wait()
    talk.close()


def test_a_model_that_does_not_stop_is_stopped(remote: Engines) -> None:
    Api.closed.clear()
    (answer,) = typed(remote, "boundless").answers
    assert answer.done
    assert 0 < len(answer.text) <= 12 * 110 + 20


def test_nobody_at_the_url() -> None:
    options = {"url": "http://127.0.0.1:9/v1", "model": "m"}
    alone = Engines(stages=(2, 3), thinker=options)
    try:
        (answer,) = typed(alone, "Hello?").answers
        assert answer.failure is not None
        assert answer.failure.code == "thinker_unavailable"
    finally:
        alone.close()


# -- the local language model ---------------------------------------------------------------------------------


def test_a_prompt_that_does_not_fit_is_cut_and_asked_again(engines: Engines) -> None:
    talk = Talk(engines)
    for i in range(12):
        talk._user(f"{i} " + "zq " * 90)
        talk._assistant("I do not know.")
    engine: StageEngine = engines.engines[2]
    from duologue.models.cascade.wire import Ask, ChatTurn

    turns = tuple(ChatTurn(str(item.role), item.text) for item in talk.items)
    ask = Ask((ChatTurn("system", "Be brief."), *turns, ChatTurn("user", "What is two plus two?")), 30, 0.0)
    talk.responding = talk_answer(talk)
    talk.unit += 1
    talk._step(2, msgspec.msgpack.encode(ask), (), talk.unit, talk.turn_id)
    talk.wait()
    assert engine.usage().kv_tokens == 0
    assert talk.answers[-1].failure is None
    assert talk.answers[-1].text
    talk.close()


def talk_answer(talk: Talk) -> Any:
    from unit.models.cascade.harness import Answer

    talk.answers.append(Answer(talk.unit + 1, talk.turn_id, 0.0))
    return talk.answers[-1]
