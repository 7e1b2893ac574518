"""An engine as a worker drives it, one step at a time: sessions with schedules of their own, and what each was told."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from duologue.model.engine import Emission, Slot, StageUnit
from duologue.model.outputs import ModelOutput, decode_output
from duologue.models.moshi.engine import MoshiEngine
from duologue.models.moshi.options import FRAME, Sampling, Talking
from duologue.models.moshi.wire import SlotConfig, encode_config

PATIENCE_S = 60.0
TALKING = Talking(loudness=9.0, pause_ms=240, hush_ms=800)
GREEDY = Sampling(temperature_audio=0.0, temperature_text=0.0)
DRAWN = Sampling(temperature_audio=0.8, temperature_text=0.7, top_k_audio=50, top_k_text=25)

Told = tuple[ModelOutput, tuple[bytes, ...]]


def sound(seed: int, frames: int) -> npt.NDArray[np.float32]:
    """`[frames, 1920]` of noise that changes its level, so that no two frames are alike."""
    noise = np.random.default_rng(seed)
    level = noise.uniform(0.02, 0.3, (frames, 1))
    return (noise.standard_normal((frames, FRAME)) * level).astype("<f4")


@dataclass(eq=False)
class Session:
    """One session of a test: its own sound, sampling and schedule."""

    frames: npt.NDArray[np.float32]
    sampling: Sampling = GREEDY
    seed: int = 0
    voice: str = ""
    prompt: str = ""
    comes: Callable[[int], bool] = lambda tick: True
    """Whether it has a frame in this tick."""
    told: list[Told] = field(default_factory=list)
    slot: Slot | None = None
    next_unit: int = 0

    @property
    def config(self) -> bytes:
        return encode_config(SlotConfig(self.sampling, TALKING, self.seed, self.voice, self.prompt))

    @property
    def answered(self) -> bool:
        return len(self.told) == self.next_unit

    def take_unit(self) -> StageUnit:
        assert self.slot is not None
        n = self.next_unit
        self.next_unit += 1
        return StageUnit(self.slot, n, 1, 0, 0, b"", (self.frames[n].tobytes(),))


class Rig:
    """`engine` must be warm; closing it is its maker's."""

    def __init__(self, engine: MoshiEngine) -> None:
        self.engine = engine
        self._woken = threading.Event()
        engine.wake = self._woken.set
        self._incarnations = itertools.count(1)
        self._sessions: dict[Slot, Session] = {}

    def open(self, session: Session, index: int) -> None:
        session.slot = Slot(index, next(self._incarnations))
        self._sessions[session.slot] = session
        self.engine.open(session.slot, session.config)

    def close(self, session: Session) -> None:
        assert session.slot is not None
        self.engine.close(session.slot)

    def step(self, sessions: Sequence[Session]) -> None:
        self._tell(self.engine.append_batch([session.take_unit() for session in sessions]))

    def run(self, sessions: Sequence[Session]) -> None:
        """Open them in slots 0, 1, ... when they first come, and go on until each was told all of its frames."""
        for tick in itertools.count():
            due = [s for s in sessions if s.comes(tick) and s.next_unit < len(s.frames)]
            for session in due:
                if session.slot is None:
                    self.open(session, sessions.index(session))
            if due:
                self.step(due)
            elif all(s.next_unit == len(s.frames) for s in sessions):
                break
        self.await_all(sessions)

    def await_all(self, sessions: Sequence[Session]) -> None:
        """What the engine still does in the background."""
        while not all(session.answered for session in sessions):
            assert self._woken.wait(PATIENCE_S), [len(session.told) for session in sessions]
            self._woken.clear()
            self._tell(self.engine.read())

    def alone(self, session: Session, index: int = 0) -> list[Told]:
        """The same session with nobody else in the engine."""
        single = Session(session.frames, session.sampling, session.seed, session.voice, session.prompt)
        self.open(single, index)
        while single.next_unit < len(single.frames):
            self.step([single])
        self.await_all([single])
        self.close(single)
        return single.told

    def _tell(self, emissions: Sequence[Emission]) -> None:
        for emission in emissions:
            assert emission.failure is None and emission.last, emission
            session = self._sessions[emission.slot]
            assert emission.unit == len(session.told), "in the order of its units"
            session.told.append((decode_output(emission.head), emission.frames))
