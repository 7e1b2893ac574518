"""The engine as a worker drives it: sessions with sound, seeds and voices of their own, and what each was told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from models.minicpmo_4_5.tiny import pipeline_toml, write_checkpoint

from duologue.model.catalog import find_pipeline
from duologue.model.engine import Emission, Failure, Slot, StageUnit
from duologue.model.outputs import ModelOutput, decode_output
from duologue.models.minicpmo_4_5.engine import MiniCPMOEngine, build
from duologue.models.minicpmo_4_5.options import Sampling, Window
from duologue.models.minicpmo_4_5.wire import SlotConfig, encode_config

Told = tuple[ModelOutput, tuple[bytes, ...]]
GREEDY = Sampling(temperature=0.0)
DRAWN = Sampling(temperature=0.9, top_k=8)


def sound(seed: int, units: int) -> npt.NDArray[np.float32]:
    """`[units, 16000]` of noise whose level changes, so that no two units are alike."""
    noise = np.random.default_rng(seed)
    return (noise.standard_normal((units, 16000)) * noise.uniform(0.01, 0.3, (units, 1))).astype("<f4")


def tone_pcm(hz: float, seconds: float = 1.0) -> bytes:
    t = np.arange(int(16000 * seconds)) / 16000
    return (np.sin(2 * np.pi * hz * t) * 9000).astype("<i2").tobytes()


@dataclass(eq=False)
class Session:
    units: npt.NDArray[np.float32]
    seed: int = 0
    sampling: Sampling = DRAWN
    voice: bytes = b""
    window: Window = Window()
    speaks: bool = True
    instructions: str = "hello"
    told: list[Told] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    slot: Slot | None = None
    next_unit: int = 0

    @property
    def config(self) -> bytes:
        return encode_config(
            SlotConfig(self.sampling, self.window, self.instructions, self.speaks, self.voice, 16000, self.seed)
        )

    def take_unit(self, head: bytes = b"", images: Sequence[bytes] = (), *, replay: bool = False) -> StageUnit:
        assert self.slot is not None
        n = self.next_unit
        self.next_unit += 1
        return StageUnit(self.slot, n, 1, 0, 0, head, (self.units[n].tobytes(), *images), replay)

    def again(self) -> Session:
        """The same one, as it was before it began."""
        return Session(self.units, self.seed, self.sampling, self.voice, self.window, self.speaks, self.instructions)


class Rig:
    """`engine` must be warm; shutting it down is its maker's."""

    def __init__(self, engine: MiniCPMOEngine) -> None:
        self.engine = engine
        self._incarnations = itertools.count(1)
        self._open: list[Session] = []

    def open(self, session: Session, index: int = 0) -> Session:
        session.slot = Slot(index, next(self._incarnations))
        self.engine.open(session.slot, session.config)
        self._open.append(session)
        return session

    def close(self, session: Session) -> None:
        assert session.slot is not None
        self.engine.close(session.slot)
        self._open.remove(session)

    def close_all(self) -> None:
        for session in list(self._open):
            self.close(session)

    def step(self, session: Session, head: bytes = b"", images: Sequence[bytes] = (), *, replay: bool = False) -> Told:
        """One unit that must land."""
        emission = self.emit(session, head, images, replay=replay)
        assert emission.failure is None, emission.failure
        told = decode_output(emission.head), emission.frames
        session.told.append(told)
        return told

    def emit(
        self, session: Session, head: bytes = b"", images: Sequence[bytes] = (), *, replay: bool = False
    ) -> Emission:
        [emission] = self.engine.append_batch([session.take_unit(head, images, replay=replay)])
        assert emission.last and emission.slot == session.slot
        return emission

    def alone(self, session: Session, index: int = 0) -> list[Told]:
        """The same session with nobody else in the engine."""
        single = self.open(session.again(), index)
        for _ in range(len(single.units)):
            self.step(single)
        self.close(single)
        return single.told

    def duplex(self, session: Session) -> Any:
        """The remote code's own object of a session."""
        assert session.slot is not None
        return self.engine._places[session.slot.index].seat._duplex


def warm(folder: Path, *, vision: bool, separate: bool, options: dict[str, Any]) -> Rig:
    """`options`: over those of the tiny pipeline."""
    write_checkpoint(folder, vision=vision, separate=separate)
    pipeline = find_pipeline(str(pipeline_toml(folder, vision=vision)))
    given = {**pipeline.options, "vocoder": "models.minicpmo_4_5.tone:Tone", **options}
    engine = build(msgspec.structs.replace(pipeline, options=given), 0)
    assert isinstance(engine, MiniCPMOEngine)
    engine.wake = lambda: None
    engine.warm_up()
    return Rig(engine)
