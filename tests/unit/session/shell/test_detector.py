"""The detector of a shard: company, bounds, failures. The model is a fake that a test can hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from unit.session.shell.shell_rig import Shell

from duologue.hearing.mel import Floats
from duologue.hearing.voice_activity import FRAME, STATE_BYTES, Stream
from duologue.runtime.settings import SessionSettings
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.detector import MAX_FRAMES, MAX_TURNS, SpeechDetector

pytestmark = pytest.mark.unit


class FakeModel:
    """A frame's probability is its first sample; a stream's state counts its frames. `held` until it is set."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.held.set()
        self.reached = threading.Event()
        self.batches: list[int] = []
        self.error: Exception | None = None

    def judge(self, streams: Sequence[Stream], frames: Sequence[Floats]) -> list[float]:
        self.reached.set()
        assert self.held.wait(10)
        if self.error is not None:
            raise self.error
        self.batches.append(len(frames))
        for stream in streams:
            stream.state = stream.state + 1
        return [float(frame[0]) for frame in frames]


@asynccontextmanager
async def detecting(model: FakeModel, **how: Any) -> AsyncIterator[SpeechDetector]:
    detector = SpeechDetector(lambda: model, lambda: FakeTurns(), gather_s=0.0, **how)
    detector.start()
    yield detector
    model.held.set()
    detector.close()


class FakeTurns:
    def probability(self, pcm: Floats) -> float:
        return float(pcm.mean())


Answer = tuple[bytes, tuple[float, ...], str]


def ask(detector: SpeechDetector, *values: float, state: bytes = b"") -> asyncio.Future[Answer]:
    """A question with one frame for each value."""
    frames = np.zeros((len(values), FRAME), "<f4")
    frames[:, 0] = values
    told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    detector.detect(state, frames.tobytes(), lambda *answer: told.set_result(answer))
    return told


async def test_an_answer_has_a_probability_for_each_frame_and_the_state() -> None:
    async with detecting(FakeModel()) as detector:
        state, probabilities, error = await ask(detector, 0.25, 0.5, 1.0)
        assert (probabilities, error, len(state)) == ((0.25, 0.5, 1.0), "", STATE_BYTES)
        again, _, _ = await ask(detector, 0.5, state=state)
        assert Stream(again).state.mean() == 4


async def test_a_state_of_another_make_begins_anew() -> None:
    async with detecting(FakeModel()) as detector:
        state, probabilities, error = await ask(detector, 0.5, state=b"foreign")
        assert (probabilities, error) == ((0.5,), "")
        assert Stream(state).state.mean() == 1


async def test_ovl_09_who_waits_is_judged_together_by_one_thread() -> None:
    model = FakeModel()
    before = threading.active_count()
    async with detecting(model) as detector:
        model.held.clear()
        first = ask(detector, 0.5)
        assert await asyncio.to_thread(model.reached.wait, 10)
        rest = [ask(detector, 0.5, 0.5) for _ in range(200)]
        assert threading.active_count() - before <= 2, "the detector's, and the one of this test"
        model.held.set()
        await asyncio.gather(first, *rest)
        assert model.batches == [1, 200, 200]
        assert detector.frames == 401


async def test_a_long_question_keeps_nobody_waiting() -> None:
    model = FakeModel()
    async with detecting(model) as detector:
        model.held.clear()
        long = ask(detector, *[0.5] * 4000)
        short = ask(detector, 0.5)
        model.held.set()
        await short
        assert not long.done()
        assert len((await long)[1]) == 4000


async def test_beyond_the_bound_a_question_is_answered_full() -> None:
    assert SessionSettings().detector_frames == MAX_FRAMES
    model = FakeModel()
    async with detecting(model, max_frames=3) as detector:
        model.held.clear()
        first = ask(detector, 0.5, 0.5)
        refused = ask(detector, 0.5, 0.5)
        assert not refused.done(), "never from inside"
        assert await refused == (b"", (), "detector_full")
        assert detector.full == 1
        model.held.set()
        assert (await first)[2] == ""
        assert (await ask(detector, 0.5, 0.5, 0.5))[2] == "", "the room is given back"


async def test_a_model_that_breaks_is_gone_for_good(caplog: pytest.LogCaptureFixture) -> None:
    model = FakeModel()
    async with detecting(model) as detector:
        model.error = RuntimeError("broken")
        assert await ask(detector, 0.5) == (b"", (), "detector_failed")
        assert await ask(detector, 0.5) == (b"", (), "detector_failed")
    assert "speech detector has failed" in caplog.text


async def test_a_model_that_cannot_be_loaded_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> FakeModel:
        raise OSError("no such file")

    detector = SpeechDetector(load)
    told = ask(detector, 0.5)
    detector.start()
    assert (await told)[2] == "detector_failed"
    detector.close()
    assert "no such file" in caplog.text


async def test_a_turn_is_judged_beside() -> None:
    async with detecting(FakeModel()) as detector:
        told: asyncio.Future[tuple[float, str]] = asyncio.get_running_loop().create_future()
        detector.judge(np.full(100, 0.75, "<f4").tobytes(), lambda *answer: told.set_result(answer))
        assert await told == (0.75, "")


async def test_beyond_the_bound_a_pause_is_not_judged() -> None:
    held = threading.Event()

    class Slow:
        def probability(self, pcm: Floats) -> float:
            assert held.wait(10)
            return 0.5

    detector = SpeechDetector(FakeModel, Slow)
    told: list[tuple[float, str]] = []
    over = asyncio.Event()

    def judged(finished: float, error: str) -> None:
        told.append((finished, error))
        if len(told) == MAX_TURNS + 1:
            over.set()

    for _ in range(MAX_TURNS + 1):
        detector.judge(bytes(4), judged)
    await asyncio.sleep(0)
    assert told == [(0.0, "offload_full")]
    assert detector.turns_refused == 1
    held.set()
    await asyncio.wait_for(over.wait(), 10)
    assert told.count((0.5, "")) == MAX_TURNS
    detector.close()


# -- in a session --------------------------------------------------------------------------------------------


async def test_a_session_without_a_detector_is_told_so() -> None:
    shell = Shell(detects=False)
    shell.register_workers()
    machine = await shell.open()
    machine.script = lambda fact: [orders.Detect(7, b"", bytes(2048)), orders.JudgeTurn(8, b"")]
    shell.manager.residents[0].runner.post(facts.Tick())
    machine.script = lambda fact: None
    await shell.turn()
    assert machine.handled[-1] == facts.Detected(7, error="detector_failed")
    await shell.close()


async def test_questions_and_answers_go_through_the_runner() -> None:
    shell = Shell()
    shell.register_workers()
    machine = await shell.open()
    shell.detector.start()
    answered = asyncio.Event()
    frame = np.full((1, FRAME), 0.25, "<f4").tobytes()
    machine.script = lambda fact: [orders.Detect(7, b"", frame), orders.JudgeTurn(8, frame)]
    runner = shell.manager.residents[0].runner
    runner.post(facts.Tick())

    def take(fact: facts.SessionCommand) -> list[orders.SessionEffect]:
        if {type(one) for one in machine.handled} >= {facts.Detected, facts.TurnJudged}:
            answered.set()
        return []

    machine.script = take
    await asyncio.wait_for(answered.wait(), 10)
    told = {type(one): one for one in machine.handled}
    verdict, judged = told[facts.Detected], told[facts.TurnJudged]
    assert isinstance(verdict, facts.Detected) and isinstance(judged, facts.TurnJudged)
    assert (verdict.ticket, verdict.probabilities, verdict.error) == (7, (0.25,), "")
    assert (judged.ticket, judged.finished) == (8, 0.25)
    await shell.close()
