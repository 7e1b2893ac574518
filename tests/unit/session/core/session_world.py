"""The world around one machine: a store, a gateway and workers that do their part at once, unless told not to.

The world keeps its own books (what was submitted, delivered, confirmed) and checks the machine against them
after every effect, never against what the machine says of itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from unit.session.core.fake_models import FakeModel, Head, head_of

from duologue.fence import CommandNo, DeliveryId, StageFence
from duologue.model.outputs import ModelOutput, TextMark, encode_output
from duologue.model.plugin import RecordedUnit
from duologue.protocol.duplex import AppendAudio, Dialect, DuplexCommand
from duologue.session.core import (
    Abort,
    Checkpoint,
    Close,
    CloseStages,
    ControlStage,
    Covered,
    Deliver,
    Delivered,
    Detect,
    Detected,
    DuplexSessionMachine,
    FromClient,
    InputRecalled,
    Invalidate,
    JudgeTurn,
    Offload,
    Offloaded,
    OpenStages,
    RecallInput,
    RecordInput,
    SessionCommand,
    SessionEffect,
    SessionLimits,
    StageOutput,
    StagesReady,
    Submit,
    Tick,
    TurnJudged,
    UnitsAborted,
    run_offload,
)

SESSION = "duplex-" + "0" * 32
Event = dict[str, Any]


def sound(ms: float, loud: bool = True, rate: int = 16_000) -> bytes:
    """PCM16 that passes for speech, or silence."""
    wave = np.sin(np.arange(round(ms * rate / 1000)) / 7) * (9000 if loud else 0)
    return wave.astype("<i2").tobytes()


def spoken(text: str = "", units: int = 1, **more: Any) -> ModelOutput:
    """One output of speech: `units` units of 80 ms."""
    marks = (TextMark(len(text), 80.0 * units),) if text else ()
    return ModelOutput(text=text, audio_rate_hz=24_000, marks=marks, **more)


class World:
    """`held` switches single parts off: `covers`, `delivers`, `aborts`, `ready`."""

    def __init__(
        self,
        plugin: FakeModel | None = None,
        *,
        dialect: Dialect = Dialect.duplex,
        limits: SessionLimits | None = None,
        auto: bool = False,
        holds: Iterable[str] = (),
        **session: Any,
    ) -> None:
        self.plugin = plugin or FakeModel()
        self.limits = limits or SessionLimits()
        self.holds = set(holds)
        self.now = 0.0
        self.sent = 0
        self.events: list[Event] = []
        self.submits: list[Submit] = []
        self.waiting: list[Submit] = []
        self.effects: list[SessionEffect] = []
        self.checkpoints: list[Checkpoint] = []
        self.finished = 0.0
        """What the end-of-turn model says of any turn."""
        self.closed: str | None = None
        self.last_n = 0
        self.bodies: dict[int, bytes] = {}
        self.fences: list[StageFence] = []
        self.recorded: list[RecordedUnit] = []
        request = {"extra_body": {"auto_response": auto}, **session}
        self.machine, effects = DuplexSessionMachine.open(
            session_id=SESSION,
            seed=b"seed",
            owner=1,
            dialect=dialect,
            model="fake",
            plugin=self.plugin,
            limits=self.limits,
            request=request,
            opened_unix_s=1_000_000.0,
            max_sessions=8,
        )
        self._perform(effects)

    # -- what tests do ------------------------------------------------------------------------------------

    def send(self, command: DuplexCommand) -> list[Event]:
        """One client command; the events it caused."""
        self.sent += 1
        return self.fact(FromClient(CommandNo(1, self.sent), command))

    def say(self, ms: float = 80, loud: bool = True, **hints: Any) -> list[Event]:
        return self.send(AppendAudio(audio=sound(ms, loud), **hints))

    def fact(self, fact: SessionCommand) -> list[Event]:
        before = len(self.events)
        self._perform(self.machine.handle(fact, self.now))
        return self.events[before:]

    def answer(self, *outputs: ModelOutput, last: bool = True) -> list[Event]:
        """The oldest waiting unit is through, and this came of it."""
        unit = self.waiting.pop(0) if last else self.waiting[0]
        before = len(self.events)
        for number, output in enumerate(outputs or (ModelOutput(),)):
            frames = (b"\1\0" * 1920,) if output.audio_rate_hz else ()
            end = last and number == max(len(outputs), 1) - 1
            self.fact(StageOutput(unit.fence, 1, -1, unit.unit, unit.turn_id, end, encode_output(output), frames))
        return self.events[before:]

    def advance(self, seconds: float) -> list[Event]:
        """Let time pass, ticking whenever the machine wants to."""
        before, end = len(self.events), self.now + seconds
        for _ in range(10_000):
            due = self.machine.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.fact(Tick())
        self.now = end
        return self.events[before:]

    def response_count(self) -> int:
        return len(pick(self.events, "response.created"))

    def heads(self) -> list[Head]:
        return [head_of(submit.head) for submit in self.submits]

    def restart(self) -> None:
        """Go on from a snapshot, as another process would."""
        body = self.machine.snapshot()
        self.machine = DuplexSessionMachine.restore(body, plugin=self.plugin, owner=1)

    def verdict(self, question: Detect) -> Detected:
        """A detector that takes loud sound for speech; its state is how many frames it has seen."""
        frames = np.frombuffer(question.sound, "<f4").reshape(-1, 512)
        seen = int.from_bytes(question.state, "big") + len(frames)
        loud = np.sqrt(np.mean(frames**2, axis=1)) > 0.02
        return Detected(question.ticket, seen.to_bytes(4, "big"), tuple(np.where(loud, 0.95, 0.02).tolist()))

    # -- what the world does ------------------------------------------------------------------------------

    def _perform(self, effects: list[SessionEffect]) -> None:
        self.effects += effects
        follow: list[SessionCommand] = []
        for effect in effects:
            self._one(effect, follow)
        for fact in follow:
            self._perform(self.machine.handle(fact, self.now))

    def _one(self, effect: SessionEffect, follow: list[SessionCommand]) -> None:
        match effect:
            case Deliver():
                if effect.n <= self.last_n:
                    assert self.bodies[effect.n] == effect.body, "a delivery number was used twice"
                    return
                self.bodies[effect.n] = effect.body
                assert self.closed is None, "an event after the end"
                self.last_n = effect.n
                self.events.append(json.loads(effect.body))
                if "delivers" not in self.holds:
                    follow.append(Delivered(DeliveryId(1, effect.n)))
            case Submit():
                assert effect.fence == self.fences[-1], "a unit left under a fence that is not in force"
                self.submits.append(effect)
                self.waiting.append(effect)
            case OpenStages():
                self.fences.append(effect.fence)
                self.waiting = []
                if "ready" not in self.holds:
                    follow.append(StagesReady(effect.fence))
            case Abort():
                assert effect.fence > self.fences[-1], "a fence went back"
                self.fences.append(effect.fence)
                units, self.waiting = [unit.unit for unit in self.waiting], []
                if "aborts" not in self.holds:
                    follow.append(UnitsAborted(effect.fence, (), tuple(units)))
            case Checkpoint():
                self.checkpoints.append(effect)
                if "covers" not in self.holds:
                    follow.append(Covered(effect.number))
            case Offload():
                if "offloads" not in self.holds:
                    follow.append(Offloaded(effect.ticket, run_offload(effect.kind, effect.body)))
            case Detect():
                if "detects" not in self.holds:
                    follow.append(self.verdict(effect))
            case JudgeTurn():
                if "judges" not in self.holds:
                    follow.append(TurnJudged(effect.ticket, self.finished))
            case RecordInput():
                assert not self.recorded or effect.unit.unit > self.recorded[-1].unit, "heard out of order, or twice"
                self.recorded.append(effect.unit)
            case RecallInput():
                if "recalls" not in self.holds:
                    follow.append(InputRecalled(effect.ticket, tuple(self.recorded)))
            case Close():
                self.closed = effect.reason
            case CloseStages() | ControlStage() | Invalidate():
                pass


def types(events: Iterable[Event]) -> list[str]:
    return [event["type"] for event in events]


def pick(events: Iterable[Event], *wanted: str) -> list[Event]:
    return [event for event in events if event["type"] in wanted]


def error_codes(events: Iterable[Event]) -> list[str]:
    return [event["error"]["code"] for event in pick(events, "error")]
