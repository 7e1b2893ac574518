"""SpeechDetector: Silero for all sessions of a shard, Smart Turn beside it; each with one model and one thread.

Rule 1. Whoever waits goes into the next run together: one run judges one frame of each session. Runs begin at
        most every `gather_s`, so that company is waited for under load and never by the first.
Rule 2. A session has at most one question out; its answer leaves as soon as its own frames are through,
        however much others have sent.
Rule 3. Bounded by the frames that wait: beyond `max_frames` a question is answered `detector_full`, in the next
        turn of the loop. The end-of-turn model takes `MAX_TURNS`; beyond it the answer is `offload_full`.
Rule 4. No session's state is kept here: it comes with the question and goes with the answer.
Rule 5. A model that cannot be loaded, or breaks, is gone for good: every question is answered `detector_failed`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Condition, Thread
from typing import Final, Protocol

import numpy as np

from duologue.hearing import parts
from duologue.hearing.end_of_turn import EndOfTurn
from duologue.hearing.mel import Floats
from duologue.hearing.voice_activity import FRAME, STATE_BYTES, Stream, VoiceDetector
from duologue.runtime import metrics
from duologue.session.offload import OffloadPool

_log = logging.getLogger("duologue.session")

GATHER_S: Final = 0.016
MAX_FRAMES: Final = 16_384
MAX_TURNS: Final = 64

FULL, FAILED = "detector_full", "detector_failed"

Done = Callable[[bytes, tuple[float, ...], str], None]
"""Called with the state, the probabilities and an error (empty: none), from the loop, never from inside."""
Judged = Callable[[float, str], None]


class VoiceModel(Protocol):
    """`VoiceDetector`, and what tests put in its place."""

    def judge(self, streams: Sequence[Stream], frames: Sequence[Floats]) -> list[float]: ...


class TurnModel(Protocol):
    def probability(self, pcm: Floats) -> float: ...


class _Question:
    """What one session waits for."""

    __slots__ = ("asked_at", "done", "frames", "loop", "probabilities", "stream")

    def __init__(self, state: bytes, sound: bytes, done: Done) -> None:
        self.stream = Stream(state if len(state) == STATE_BYTES else b"")  # a foreign one begins anew
        self.frames: Floats = np.frombuffer(sound, "<f4").reshape(-1, FRAME)
        self.probabilities: list[float] = []
        self.done = done
        self.loop = asyncio.get_running_loop()
        self.asked_at = time.perf_counter()

    @property
    def left(self) -> int:
        return len(self.frames) - len(self.probabilities)


class SpeechDetector:
    """See the module. Its methods are for the loop's thread; `start` comes first."""

    def __init__(
        self,
        voice: Callable[[], VoiceModel],
        turns: Callable[[], TurnModel] | None = None,
        *,
        max_frames: int = MAX_FRAMES,
        gather_s: float = GATHER_S,
    ) -> None:
        """`voice` and `turns` load the models, in their threads. Without `turns` no turn is judged."""
        self.judges_turns = turns is not None
        self.full = 0
        """Questions that there was no room for."""
        self.frames = 0
        """Frames judged."""
        self._voice = voice
        self._turns = turns
        self._turn_model: TurnModel | None = None
        self._max_frames = max_frames
        self._gather_s = gather_s
        self._waiting: deque[_Question] = deque()
        self._left = 0
        self._changed = Condition()
        self._open = True
        self._broken = False
        self._thread = Thread(target=self._run, name="detector", daemon=True)
        self._judges = OffloadPool(self._judge_turn, threads=1, max_queued=MAX_TURNS)

    def start(self) -> None:
        """Load the model and wait for questions."""
        self._thread.start()

    @property
    def turns_refused(self) -> int:
        return self._judges.refused

    def detect(self, state: bytes, sound: bytes, done: Done) -> None:
        """`sound`: whole frames of 512 float32 samples at 16 kHz. `state`: of the last answer, or empty."""
        question = _Question(state, sound, done)
        with self._changed:
            error = FAILED if self._broken or not self._open else ""
            if not error and self._left + question.left > self._max_frames:
                error, self.full = FULL, self.full + 1
            if not error:
                self._left += question.left
                self._waiting.append(question)
                self._changed.notify()
        if error:
            question.loop.call_soon(done, b"", (), error)

    def judge(self, sound: bytes, done: Judged) -> None:
        """Whether a turn sounds finished: its last seconds, float32 at 16 kHz."""
        self._judges.submit(
            "end_of_turn", sound, lambda told, error: done(0.0 if error else struct.unpack("<d", told)[0], error)
        )

    def close(self) -> None:
        """What waits is not answered any more."""
        with self._changed:
            self._open = False
            self._waiting.clear()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._judges.close()

    # -- the threads -----------------------------------------------------------------------------------

    def _judge_turn(self, kind: str, body: bytes) -> bytes:
        if self._turn_model is None:
            assert self._turns is not None, "sessions know that there is none"
            self._turn_model = self._turns()
        return struct.pack("<d", self._turn_model.probability(np.frombuffer(body, "<f4")))

    def _run(self) -> None:
        company: list[_Question] = []
        try:
            model = self._voice()
            began_at = 0.0
            while self._open and (company or self._wait(began_at + self._gather_s)):
                now = time.perf_counter()
                if not company or now >= began_at + self._gather_s:
                    company, began_at = company + self._join(), now
                if company:
                    company = self._step(model, company)
        except Exception:  # whatever the model raised: its users are told, and live without it
            _log.exception("the speech detector has failed: turn detection is off in this process")
            self._fail(company)

    def _wait(self, until: float) -> bool:
        """Until somebody waits and this time has come. False: the end."""
        with self._changed:
            while self._open and not self._waiting:
                self._changed.wait()
            while self._open and (rest := until - time.perf_counter()) > 0:
                self._changed.wait(rest)
            return self._open

    def _join(self) -> list[_Question]:
        """Who waits."""
        with self._changed:
            joined = list(self._waiting)
            self._waiting.clear()
            return joined

    def _step(self, model: VoiceModel, company: list[_Question]) -> list[_Question]:
        """One frame of each. Who still has frames stays."""
        frames = [question.frames[len(question.probabilities)] for question in company]
        told = model.judge([question.stream for question in company], frames)
        metrics.SESSION_DETECTOR_BATCH.observe(len(company))
        self.frames += len(company)
        over: list[_Question] = []
        for question, probability in zip(company, told, strict=True):
            question.probabilities.append(probability)
            if not question.left:
                over.append(question)
        with self._changed:
            self._left -= len(company)
        if over:
            self._answer(over, "")
            company = [question for question in company if question.left]
        return company

    def _fail(self, company: list[_Question]) -> None:
        with self._changed:
            self._broken = True
            company = company + list(self._waiting)
            self._waiting.clear()
        self._answer(company, FAILED)

    def _answer(self, questions: list[_Question], error: str) -> None:
        for loop in {question.loop for question in questions}:
            theirs = [question for question in questions if question.loop is loop]
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, theirs, error)


def _deliver(questions: list[_Question], error: str) -> None:
    now = time.perf_counter()
    for question in questions:
        metrics.SESSION_DETECTOR_LATENCY.observe(now - question.asked_at)
        if error:
            question.done(b"", (), error)
        else:
            question.done(question.stream.export(), tuple(question.probabilities), "")


def installed(voice_path: str = "", turns_path: str = "", max_frames: int = MAX_FRAMES) -> SpeechDetector | None:
    """The detector of this machine, not started; None if it has no model for speech or nothing to run it.
    A path points at another file than the package's. Raises OSError if there is none."""
    if not parts.has_runtime():
        return None
    voice, turns = _file(parts.VOICE_ACTIVITY, voice_path), _file(parts.END_OF_TURN, turns_path)
    if voice is None:
        return None
    judge = None if turns is None else lambda: EndOfTurn(turns)
    return SpeechDetector(lambda: VoiceDetector(voice), judge, max_frames=max_frames)


def _file(part: parts.Part, configured: str) -> Path | None:
    if not configured:
        return part.find()
    path = Path(configured).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"the model for {part.what}: {path} does not exist")
    return path
