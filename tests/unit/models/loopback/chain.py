"""A loopback session in one process: its plugin and its four stages, without a bus and without a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from duologue.model.catalog import find_pipeline
from duologue.model.engine import SESSION, Emission, Failure, Slot, StageEngine, StageUnit
from duologue.model.outputs import ModelOutput
from duologue.model.pipeline import resolve
from duologue.model.plugin import InputUnit
from duologue.models.loopback.plugin import Loopback
from duologue.protocol.duplex import SessionConfig

Result = tuple[ModelOutput, bytes]


def voice(ms: int, level: float = 0.3, hz: float = 220.0, at_ms: int = 0) -> bytes:
    """A tone, float32 at 16 kHz; by its level it passes for speech."""
    t = np.arange(at_ms * 16, (at_ms + ms) * 16) / 16_000
    return (level * np.sin(2 * np.pi * hz * t)).astype("<f4").tobytes()


class Chain:
    """One session. `feed` takes a unit through all stages and gives the session its result."""

    def __init__(self, model: str = "loopback", auto: bool = True, **session: Any) -> None:
        pipeline = find_pipeline(model)
        self.plugin = Loopback(pipeline)
        self.unit_ms = self.plugin.traits.unit_ms
        self.auto = auto
        self.config = SessionConfig(model=model, auto_response=auto, **session)
        self.plugin.validate(self.config, None)
        self.state = self.plugin.new_state(self.config)
        self.engines: list[StageEngine] = [
            resolve(stage.engine)(pipeline, i) for i, stage in enumerate(pipeline.stages)
        ]
        self.slot = Slot(0, 1)
        self.epoch = self.turn_id = self.units = self.clock_ms = 0
        self.failure: Failure | None = None
        self.open()

    def open(self) -> None:
        configs = self.plugin.stage_configs(self.config, self.state)
        for engine, config in zip(self.engines, configs, strict=True):
            engine.open(self.slot, config)

    def turn(self) -> None:
        """A turn that is to be answered begins."""
        self.turn_id += 1
        self.plugin.on_turn_start(self.state, self.turn_id, self.epoch)

    def cancel(self) -> None:
        self.epoch += 1
        self.plugin.on_cancel(self.state, self.epoch)
        for engine in self.engines:
            engine.cancel(self.slot, self.epoch)

    def ahead(self, pcm: bytes | None = None, attempt: int = 0, **unit: Any) -> Emission:
        """Take a unit through the stages; the session does not hear of it yet."""
        pcm = bytes(self.unit_ms * 64) if pcm is None else pcm
        plan = self.plugin.plan_unit(
            self.state, InputUnit(pcm, self.turn_id, self.epoch, self.clock_ms, self.auto, **unit)
        )
        number = self.units
        self.units += 1
        self.clock_ms += self.unit_ms
        emission = Emission(self.slot, plan.stage, number, self.turn_id, plan.head, plan.frames)
        for engine in self.engines[plan.stage :]:
            head, frames = emission.head, emission.frames
            given = StageUnit(self.slot, number, self.turn_id, self.epoch, attempt, head, frames)
            (emission,) = engine.append_batch([given])
            if emission.failure is not None:
                return emission
        assert emission.to == SESSION and emission.last and emission.unit == number
        return emission

    def take(self, emission: Emission) -> Result:
        """The session gets what came of a unit."""
        self.failure = emission.failure
        if emission.failure is not None:
            return ModelOutput(error=emission.failure.message), b""
        (output,) = self.plugin.project(self.state, emission.head, emission.frames)
        return output, emission.frames[0] if emission.frames else b""

    def feed(self, pcm: bytes | None = None, attempt: int = 0, **unit: Any) -> Result:
        return self.take(self.ahead(pcm, attempt, **unit))

    def run(self, units: int, pcm: bytes | None = None, **unit: Any) -> list[Result]:
        return [self.feed(pcm, **unit) for _ in range(units)]


def kind(output: ModelOutput) -> str:
    """l(isten), s(peak), c(all), in capitals where a turn ends; u(ndecided), .(nothing), !(failed)."""
    if output.error:
        return "!"
    if output.tool_calls:
        return "C" if output.end_of_turn else "c"
    if output.audio_rate_hz:
        return "S" if output.end_of_turn else "s"
    return "l" if output.listen else "u" if output.undecided else "."


def story(results: Sequence[Result]) -> str:
    return "".join(kind(output) for output, _ in results)


def said(results: Sequence[Result]) -> str:
    return "".join(output.text for output, _ in results)


def sound(results: Sequence[Result]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.frombuffer(b"".join(pcm for _, pcm in results), dtype="<i2") / 32768


def follow(*script: dict[str, Any], loopback: dict[str, Any] | None = None, **more: Any) -> Chain:
    """Open a session that follows a script."""
    settings: dict[str, Any] = dict(loopback or {})
    if script:
        settings["script"] = list(script)
    return Chain(extra_body={"loopback": settings}, **more)
