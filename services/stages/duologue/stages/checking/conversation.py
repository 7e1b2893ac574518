"""One conversation with a model, tick by tick: what a session would submit, and what comes back.

A tick is one unit of input, or the question to a model that answers plans. The same conversation is held alone and
beside others, cancelled at its every step, and gone on with afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from duologue.model.engine import NO_UNIT, Emission, Failure, StageUnit
from duologue.model.outputs import ModelOutput, Usage
from duologue.model.plugin import AppendPlan, InputUnit, Rebuild, RecordedUnit, ResponseRequest
from duologue.protocol.duplex import ContentPart, Item, SessionConfig
from duologue.stages.checking.notes import NotedPlugin
from duologue.stages.checking.stack import Stack

TURN: Final = 1
_NOTHING: Final = ModelOutput()
ASK_AT: Final = 4
"""The tick at which a model that answers plans is asked."""


class Said(msgspec.Struct, frozen=True):
    """One result. `unit` is -1 if it was made between appends."""

    unit: int
    output: ModelOutput
    audio: bytes

    @property
    def speaks(self) -> bool:
        return bool(self.output.text or self.output.audio_rate_hz or self.output.tool_calls)


class Talk:
    """A session with its slots. Raises what the plugin and the engines refuse with."""

    def __init__(
        self, stack: Stack, plugin: NotedPlugin, config: SessionConfig, sound: list[bytes], prompt: str
    ) -> None:
        self.stack, self.plugin, self.config, self.sound, self.prompt = stack, plugin, config, sound, prompt
        self.traits = plugin.plugin.traits
        plugin.plugin.validate(config, None)
        self.session, self.state, configs = plugin.open(config)
        if len(configs) != len(stack.engines):
            raise AssertionError(f"stage_configs made {len(configs)} configurations for {len(stack.engines)} stages")
        self.seat = stack.open(configs)
        self.seat.deliver, self.seat.fail = self._deliver, self._fail
        self.said: list[Said] = []
        self.failed: list[tuple[int, int, Failure]] = []
        """Units that failed: stage, unit and why."""
        self.recorded: list[RecordedUnit] = []
        self.epoch = 0
        self.turn = 0
        self.heard = 0
        """Units of the user's sound."""
        self.next_unit = 0
        self.mark = 0
        """What was said before some moment, for whoever looks at the rest."""
        self._ended: set[int] = set()
        """Turns whose end the model has told."""

    @property
    def ended(self) -> bool:
        """A turn has come to its end since the last cancel."""
        return bool(self._ended)

    @property
    def items(self) -> tuple[Item, ...]:
        """The conversation so far, as a session would keep it."""
        said = "".join(said.output.text for said in self.said)
        answer = Item(id="item_2", role="assistant", content=(ContentPart(type="output_text", text=said),))
        return (self._question(), answer) if said else (self._question(),)

    @property
    def turn_based(self) -> bool:
        """The model answers turns of units: it is told when one begins and when its sound is over."""
        return self.traits.answers == "units" and not self.config.auto_response

    # -- ticks -----------------------------------------------------------------------------------------

    def ticks(self, units: int) -> Iterator[None]:
        """Submit one tick at a time; whoever iterates has the engines work in between."""
        if self.turn_based:
            yield from self._turn(units)
            return
        self.turn = max(self.turn, TURN)
        for tick in range(units):
            self.hear(self.sound[tick % len(self.sound)])
            if tick == ASK_AT and self.traits.answers == "plan":
                self.ask()
            yield

    def hold(self, units: int) -> None:
        """The whole of it, alone."""
        for _ in self.ticks(units):
            self.stack.settle([self.seat])

    def _turn(self, units: int) -> Iterator[None]:
        """A quarter of it is the user's."""
        self.turn += 1
        self._call("on_turn_start", self.turn, self.epoch)
        spoken = max(units // 4, 1)
        for tick in range(spoken):
            self.hear(self.sound[tick % len(self.sound)], final=tick == spoken - 1)
            yield
        for _ in range(units - spoken):
            if self.turn in self._ended:
                return
            self.hear(bytes(len(self.sound[0])), continuation=True)
            yield

    def hear(self, pcm: bytes, *, final: bool = False, continuation: bool = False) -> int:
        unit = InputUnit(
            pcm=pcm,
            turn_id=self.turn,
            epoch=self.epoch,
            start_ms=self.heard * self.traits.unit_ms,
            auto=self.config.auto_response,
            final=final,
            continuation=continuation,
            is_speech=None if continuation else any(pcm),
            response_open=self.seat.under_way,
        )
        self.heard += not continuation
        return self.submit(self._call("plan_unit", unit))

    def ask(self) -> int:
        """Have a response made of a conversation of one message."""
        request = ResponseRequest((self._question(),), None, self.turn, self.epoch, {}, self.config)
        self._call("on_turn_start", self.turn, self.epoch)
        return self.submit(self._call("plan_response", request))

    def hear_nothing(self) -> None:
        """A unit whose sound got lost on the way to the engine."""
        unit = InputUnit(pcm=self.sound[0], turn_id=self.turn, epoch=self.epoch, start_ms=0, auto=True)
        plan = self._call("plan_unit", unit)
        self.submit(AppendPlan(plan.head, (), plan.stage))
        self.recorded.pop()

    def plan_rebuild(self, rebuild: Rebuild) -> Sequence[AppendPlan]:
        plans: Sequence[AppendPlan] = self._call("plan_rebuild", rebuild)
        return plans

    def _question(self) -> Item:
        return Item(id="item_1", role="user", content=(ContentPart(type="input_text", text=self.prompt),))

    def submit(self, plan: AppendPlan, *, replay: bool = False) -> int:
        number = self.next_unit
        self.next_unit += 1
        frames = tuple(bytes(frame) for frame in plan.frames)
        slot = self.seat.slots[plan.stage]
        unit = StageUnit(slot, number, self.turn, self.epoch, 0, bytes(plan.head), frames, replay)
        if not replay:
            self.recorded.append(RecordedUnit(number, self.turn, plan.stage, unit.head, frames))
        self.stack.give(self.seat, plan.stage, unit)
        return number

    def cancel(self) -> None:
        """As a session does: everything under way is void, then the model is told."""
        self.epoch += 1
        self.stack.cancel(self.seat, self.epoch)
        self._call("on_cancel", self.epoch)
        self._ended.clear()

    def close(self) -> None:
        self.stack.close(self.seat)

    # -- what comes back -------------------------------------------------------------------------------

    def _deliver(self, stage: int, emission: Emission) -> None:
        frames = tuple(bytes(frame) for frame in emission.frames)
        for output in self._call("project", bytes(emission.head), frames):
            audio = frames[0] if output.audio_rate_hz and frames else b""
            self.said.append(Said(emission.unit, output, audio))
            if output.end_of_turn:
                self._ended.add(emission.turn_id)

    def _fail(self, stage: int, unit: int, failure: Failure) -> None:
        self.failed.append((stage, unit, failure))

    def take_usage(self) -> Usage | None:
        taken: Usage | None = self._call("take_usage")
        return taken

    def _call(self, method: str, *arguments: Any) -> Any:
        return self.plugin.call(self.session, self.state, method, *arguments)

    # -- for comparison --------------------------------------------------------------------------------

    @property
    def spoke_at(self) -> list[int]:
        """The units that were answered with words, sound or calls, in order, each once."""
        return list(dict.fromkeys(said.unit for said in self.said if said.speaks and said.unit != NO_UNIT))

    def transcript(self) -> list[tuple[int, str]]:
        """Unit by unit, a digest of all that was made of it; what was made between appends as unit -1."""
        whole: dict[int, Any] = {}
        for said in self.said:
            digest = whole.setdefault(said.unit, hashlib.blake2b(digest_size=8))
            output = _comparable(said.output)
            if output != _NOTHING:  # a confirmation may come before or after what another stage makes of the unit
                digest.update(msgspec.msgpack.encode(output) + said.audio)
        for _, unit, failure in self.failed:
            whole.setdefault(unit, hashlib.blake2b(digest_size=8)).update(failure.code.encode())
        return [(unit, digest.hexdigest()) for unit, digest in sorted(whole.items())]


def difference(one: Talk, other: Talk) -> str:
    """What two conversations differ in, or nothing."""
    first, second = dict(one.transcript()), dict(other.transcript())
    for unit in sorted(first.keys() | second.keys()):
        if first.get(unit) != second.get(unit):
            what = "what was made between appends" if unit == NO_UNIT else f"unit {unit}"
            return f"{what} is another one: {_told(one, unit)} and {_told(other, unit)}"
    return ""


def _comparable(output: ModelOutput) -> ModelOutput:
    """Without what depends on who was here before or on how fast it was: what was in a cache, what was thought of an
    answer that was cut off. Usage has a check of its own."""
    return output if output.usage is None else msgspec.structs.replace(output, usage=None)


def _told(talk: Talk, unit: int) -> str:
    """What was said of a unit, for a person."""
    of_it = [said for said in talk.said if said.unit == unit]
    text = "".join(said.output.text for said in of_it)
    return f"{len(of_it)} results, {sum(len(said.audio) for said in of_it)} bytes of sound, text {text[:60]!r}"
