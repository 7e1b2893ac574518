"""Plays the session's and the worker's part for the four engines of the cascade, in one thread.

`lockstep`: after each unit it waits until the engines have nothing to do, so that results depend on media time
only, however slow the machine is. Otherwise units come in real time, and the clock readings mean something.
Playback is taken as media time too: an answer plays from the unit after its first sound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt

from duologue.model.engine import NEXT, NO_UNIT, Emission, Failure, Slot, StageEngine, StageUnit
from duologue.model.outputs import ModelOutput
from duologue.model.pipeline import PipelineSpec, load_pipeline
from duologue.model.plugin import AppendPlan, InputUnit, ResponseRequest
from duologue.models.cascade import engine as builder
from duologue.models.cascade.plugin import Cascade
from duologue.protocol.duplex import ContentPart, Item, SessionConfig

Floats = npt.NDArray[np.float32]
RATE = 16_000
UNIT = 2560
UNIT_MS = 160
PIPELINE = Path(str(builder.__file__)).parent / "cascade.toml"


class Busy(Protocol):
    @property
    def busy(self) -> bool: ...


class Engines:
    """The engines of one pipeline and whoever is to be told when one of them calls."""

    def __init__(self, stages: Sequence[int] = (0, 1, 2, 3), **options: Any) -> None:
        spec = load_pipeline(PIPELINE)
        self.spec: PipelineSpec = msgspec.structs.replace(spec, options={**spec.options, **options})
        self.called = Event()
        self.engines: dict[int, StageEngine] = {}
        for stage in stages:
            engine = builder.build(self.spec, stage)
            engine.wake = self.called.set
            engine.warm_up()
            self.engines[stage] = engine
        self.talks: dict[Slot, Talk] = {}
        self._slots = 0

    def slot(self) -> Slot:
        self._slots += 1
        return Slot(self._slots % 8, self._slots)

    @property
    def busy(self) -> bool:
        return any(cast(Busy, engine).busy for engine in self.engines.values())

    def close(self) -> None:
        for engine in self.engines.values():
            engine.shut_down()


@dataclass
class Answer:
    """One response, as far as it came."""

    unit: int
    turn_id: int
    asked_at: float
    text: str = ""
    pcm: bytes = b""
    marks: list[tuple[int, float]] = field(default_factory=list)
    first_audio_at: float = 0.0
    done: bool = False
    cancelled_at_ms: int = -1
    failure: Failure | None = None
    error_code: str = ""
    began_ms: int = -1
    """Media time at which its first sound was there."""

    @property
    def ms(self) -> float:
        return len(self.pcm) / 48

    def heard(self, played_ms: float) -> str:
        """The text that was heard when so much had been played."""
        chars = 0
        for mark_chars, mark_ms in self.marks:
            if mark_ms <= played_ms:
                chars = mark_chars
        return self.text[:chars]


class Talk:
    """One session."""

    def __init__(self, engines: Engines, *, auto: bool = True, lockstep: bool = True, answers: bool = True) -> None:
        self.host = engines
        self.lockstep = lockstep
        self.answers_turns = answers
        self.auto = auto
        self.plugin = Cascade(engines.spec)
        self.config = SessionConfig(model="cascade", auto_response=auto)
        self.state = self.plugin.new_state(self.config)
        self.slot = engines.slot()
        engines.talks[self.slot] = self
        for stage, engine in engines.engines.items():
            engine.open(self.slot, self.plugin.stage_configs(self.config, self.state)[stage])
        self.unit = 0
        self.turn_id = 1
        self.epoch = 0
        self.now_ms = 0
        self.due = 0.0
        self.items: list[Item] = []
        self.outputs: list[tuple[int, float, ModelOutput]] = []
        self.answers: list[Answer] = []
        self.confirmed: list[int] = []
        self.responding: Answer | None = None

    # -- what happened ------------------------------------------------------------------------------------

    def told(self, wanted: Callable[[ModelOutput], object]) -> list[tuple[int, ModelOutput]]:
        return [(at, output) for at, _, output in self.outputs if wanted(output)]

    @property
    def turns(self) -> list[ModelOutput]:
        return [output for _, output in self.told(lambda o: o.user_turn is not None)]

    @property
    def interrupts(self) -> list[int]:
        """Media times."""
        return [at for at, _ in self.told(lambda o: o.interrupt)]

    @property
    def playing(self) -> bool:
        answer = self.responding
        return answer is not None and not (answer.done and self._played(answer) >= answer.ms)

    def _played(self, answer: Answer) -> float:
        return 0.0 if answer.began_ms < 0 else max(0.0, self.now_ms - answer.began_ms)

    # -- what the client does -----------------------------------------------------------------------------

    def hear(self, sound: Floats, *, commit: bool = False) -> None:
        """Whole units; the rest is padded with silence."""
        padded = np.zeros(-(-len(sound) // UNIT) * UNIT, np.float32)
        padded[: len(sound)] = sound
        for start in range(0, len(padded), UNIT):
            self._send(padded[start : start + UNIT], commit and start + UNIT == len(padded))

    def silence(self, ms: int, until: Callable[[], object] = lambda: False) -> None:
        for _ in range(ms // UNIT_MS):
            if until():
                return
            self._send(np.zeros(UNIT, np.float32), final=False)

    def type(self, text: str) -> None:
        """A typed turn that is to be answered."""
        self._user(text)
        self.respond()

    def respond(self, **options: Any) -> None:
        self.turn_id += 1
        request = ResponseRequest(tuple(self.items), None, self.turn_id, self.epoch, options)
        self.responding = Answer(self.unit + 1, self.turn_id, time.monotonic())
        self.answers.append(self.responding)
        self._submit(self.plugin.plan_response(self.state, request))
        self._pump()

    def cancel(self) -> None:
        """What the session does on an interruption: history keeps what was heard."""
        answer, self.responding = self.responding, None
        self.epoch += 1
        for engine in self.host.engines.values():
            engine.cancel(self.slot, self.epoch)
        if answer is not None:
            answer.cancelled_at_ms = self.now_ms
            self._assistant(answer.heard(self._played(answer)))
        self._pump()

    def wait(self) -> None:
        """Until nothing is being done."""
        deadline = time.monotonic() + 50
        while self.host.busy:
            assert time.monotonic() < deadline, "the engines do not come to rest"
            self.host.called.wait(0.05)
            self._pump()
        self._pump()

    def close(self) -> None:
        for engine in self.host.engines.values():
            engine.close(self.slot)
        del self.host.talks[self.slot]

    # -- the session's part -------------------------------------------------------------------------------

    def _send(self, sound: Floats, final: bool) -> None:
        if not self.lockstep:
            self._pace()
        unit = InputUnit(
            sound.tobytes(), self.turn_id, self.epoch, self.now_ms, self.auto, final, response_open=self.playing
        )
        self.now_ms += UNIT_MS
        self._submit(self.plugin.plan_unit(self.state, unit))
        self._pump()
        if self.lockstep:
            self.wait()
        answer = self.responding
        if answer is not None and answer.done and self._played(answer) >= answer.ms:
            self.responding = None
            self._assistant(answer.text)

    def _pace(self) -> None:
        """Wait for the time of the next unit, doing what the engines ask for."""
        now = time.monotonic()
        self.due = max(self.due + UNIT_MS / 1000, now) if self.due else now
        while (left := self.due - time.monotonic()) > 0:
            if self.host.called.wait(left):
                self._pump()

    def _submit(self, plan: AppendPlan) -> None:
        self.unit += 1
        self._step(plan.stage, plan.head, plan.frames, self.unit, self.turn_id)

    def _step(self, stage: int, head: bytes, frames: tuple[bytes, ...], unit: int, turn_id: int) -> None:
        if stage in self.host.engines:
            one = StageUnit(self.slot, unit, turn_id, self.epoch, 0, head, frames)
            self._take(stage, self.host.engines[stage].append_batch([one]))

    def _pump(self) -> None:
        self.host.called.clear()
        for stage, engine in self.host.engines.items():
            self._take(stage, engine.read())

    def _take(self, stage: int, emissions: Sequence[Emission]) -> None:
        for emission in emissions:
            if talk := self.host.talks.get(emission.slot):
                talk._take_own(stage, emission)

    def _take_own(self, stage: int, emission: Emission) -> None:
        if emission.failure is not None:
            self._failed(emission, emission.failure)
        elif emission.to == NEXT:
            self._step(stage + 1, emission.head, emission.frames, emission.unit, emission.turn_id)
        else:
            if emission.last and emission.unit != NO_UNIT:
                self.confirmed.append(emission.unit)
            for output in self.plugin.project(self.state, emission.head, emission.frames):
                self._output(emission, output)

    def _output(self, emission: Emission, output: ModelOutput) -> None:
        if output != ModelOutput():
            self.outputs.append((self.now_ms, time.monotonic(), output))
        if output.audio_rate_hz or output.end_of_turn:
            self._sound(emission, output)
        if output.interrupt and self.responding is not None:
            self.cancel()
        if output.user_turn is not None and output.user_turn.transcript:
            self._user(output.user_turn.transcript)
            if output.user_turn.answer and self.answers_turns:
                self.respond()

    def _sound(self, emission: Emission, output: ModelOutput) -> None:
        answer = self.responding
        if answer is None or emission.unit != answer.unit:
            return
        if emission.frames and not answer.pcm:
            answer.first_audio_at = time.monotonic()
            answer.began_ms = self.now_ms
        for mark in output.marks:
            answer.marks.append((len(answer.text) + mark.text_chars, answer.ms + mark.audio_ms))
        answer.text += output.text
        answer.pcm += b"".join(emission.frames)
        answer.done = answer.done or output.end_of_turn
        answer.error_code = answer.error_code or output.error_code

    def _failed(self, emission: Emission, failure: Failure) -> None:
        answer = self.responding
        if answer is not None and emission.unit == answer.unit:
            answer.failure, answer.done = failure, True

    def _user(self, text: str) -> None:
        part = ContentPart(type="input_text", text=text)
        self.items.append(Item(id=f"u{len(self.items)}", role="user", content=(part,)))

    def _assistant(self, text: str) -> None:
        part = ContentPart(type="output_audio", transcript=text)
        self.items.append(Item(id=f"a{len(self.items)}", role="assistant", content=(part,)))
