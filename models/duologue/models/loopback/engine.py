"""The four stages of the loopback model: hear, word, voice, pack. They run in stage workers only.

Rule 1. The first stage decides and keeps the playhead; the others make of a decision what it says.
Rule 2. Simulated compute holds the step loop: a step lasts as long as its slowest unit, and left-over input
        costs nothing.
Rule 3. Planned failures are the session's own: a failing unit never takes its batch along. Only `hang` and
        `exit` do, because that is what they are for.
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

import msgspec

from duologue.model.engine import (
    NEXT,
    SESSION,
    Emission,
    EngineUsage,
    Failure,
    Slot,
    StageEngine,
    StageRefused,
    StageUnit,
)
from duologue.model.outputs import ModelOutput, TextMark, ToolCall, encode_output
from duologue.model.pipeline import PipelineSpec
from duologue.models.loopback.echo import HISTORY_BYTES, upsample
from duologue.models.loopback.heads import (
    CALL,
    CONTINUATION,
    HELD_VERSION,
    LISTEN,
    SPEAK,
    UNDECIDED,
    Decision,
    Held,
    StageConfig,
    decode_config,
    decode_decision,
    decode_head,
    decode_held,
    encode,
)
from duologue.models.loopback.memory import Memory
from duologue.models.loopback.options import LoopbackOptions, read_options
from duologue.models.loopback.playhead import ANSWER_UNITS, Playhead, ScriptPlayhead, TalkPlayhead
from duologue.models.loopback.shares import share_of, words_of
from duologue.models.loopback.tones import ToneBank

OUTPUT_RATE_HZ: Final = 24_000
EXIT_STATUS: Final = 70
MAX_SEEN: Final = 8
_MASK: Final = 2**64 - 1


def build(pipeline: PipelineSpec, stage_index: int) -> StageEngine:
    """The engine of one stage. Raises PipelineError for options that it does not know."""
    options = read_options(pipeline)
    return (Hear, Word, Voice, Pack)[stage_index](pipeline, stage_index, options)


class _Place:
    """What a stage keeps of a slot."""

    __slots__ = ("compute_s", "computes", "config", "fail", "incarnation", "jitter_s", "seed", "speed")

    def __init__(self, incarnation: int, config: StageConfig, stage: int) -> None:
        self.incarnation = incarnation
        self.config = config
        self.speed = config.speed
        self.compute_s = config.compute_ms / 1000
        self.jitter_s = config.jitter_ms / 1000
        self.computes = bool(self.compute_s or self.jitter_s)
        self.seed = (config.seed * 0x9E3779B97F4A7C15 + stage) & _MASK
        self.fail = config.fail if config.fail is not None and config.fail.stage == stage else None

    def compute_time(self, unit: int) -> float:
        """Seconds of simulated compute for this unit; the same for the same seed, stage and unit."""
        if not self.jitter_s:
            return self.compute_s
        return self.compute_s + self.jitter_s * _uniform(self.seed, unit)


class LoopbackStage(StageEngine):
    """What the four have in common: slots, compute, planned failures."""

    to: int = NEXT
    exports = True

    def __init__(self, pipeline: PipelineSpec, stage: int, options: LoopbackOptions) -> None:
        spec = pipeline.stages[stage]
        self.max_batch = spec.max_batch
        self.stage = stage
        self.unit_ms = options.unit_ms
        self.options = options
        self._total = spec.slots
        self._places: dict[int, _Place] = {}

    # -- the port --------------------------------------------------------------------------------------

    def open(self, slot: Slot, config: bytes) -> None:
        self._see_room(slot)
        try:
            decoded = decode_config(config)
        except msgspec.DecodeError as error:
            raise StageRefused("invalid_duplex_runtime_config", f"stage {self.stage}: {error}") from None
        self._places[slot.index] = self._place(slot, decoded)

    def _see_room(self, slot: Slot) -> None:
        if slot.index not in self._places and len(self._places) >= self._total:
            raise StageRefused("resource_exhausted", f"stage {self.stage} has no free slot")

    def export_state(self, slot: Slot) -> bytes | None:
        place = self._places.get(slot.index)
        if place is None or place.incarnation != slot.incarnation:
            return None
        return encode(self._held(place))

    def import_state(self, slot: Slot, state: bytes) -> None:
        self._see_room(slot)
        try:
            held = decode_held(state)
        except msgspec.DecodeError as error:
            raise StageRefused("state_unreadable", f"stage {self.stage}: {error}") from None
        if held.version != HELD_VERSION or held.stage != self.stage:
            raise StageRefused("state_unreadable", f"stage {self.stage}: it is of another version or stage")
        self._places[slot.index] = self._taken(slot, held)

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        pause = 0.0
        emissions = []
        for unit in batch:
            place = self._places[unit.slot.index]
            fail = place.fail
            if fail is not None and unit.unit == fail.unit and unit.attempt < fail.times:
                self._fail(place, unit)
                failure = Failure("engine_error", f"stage {self.stage} was told to fail on unit {unit.unit}")
                emissions.append(Emission(unit.slot, self.to, unit.unit, unit.turn_id, failure=failure))
                continue
            head, frames, costs = self.step(place, unit)
            if costs and place.computes:
                pause = max(pause, place.compute_time(unit.unit))
            emissions.append(Emission(unit.slot, self.to, unit.unit, unit.turn_id, head, frames))
        if pause:
            time.sleep(pause)
        return emissions

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        places = self._places
        for unit in batch:
            place = places[unit.slot.index]
            if place.computes or place.fail is not None:
                return True
        return False

    def cancel(self, slot: Slot, epoch: int) -> None:
        """Nothing is kept ahead: the first unit of the new epoch carries the position to go on from."""

    def control(self, slot: Slot, kind: str, body: bytes) -> None:
        """Of an update only the speed can be another: everything else is fixed at open."""
        place = self._places.get(slot.index)
        if place is not None and place.incarnation == slot.incarnation:
            place.speed = decode_config(body).speed

    def close(self, slot: Slot) -> None:
        place = self._places.get(slot.index)
        if place is not None and place.incarnation == slot.incarnation:
            del self._places[slot.index]

    def usage(self) -> EngineUsage:
        return EngineUsage(len(self._places), self._total)

    # -- for the stages --------------------------------------------------------------------------------

    def _place(self, slot: Slot, config: StageConfig) -> _Place:
        return _Place(slot.incarnation, config, self.stage)

    def _held(self, place: _Place) -> Held:
        """All that a slot holds. The words of a step follow from the configuration."""
        return Held(HELD_VERSION, self.stage, msgspec.structs.replace(place.config, speed=place.speed))

    def _taken(self, slot: Slot, held: Held) -> _Place:
        return self._place(slot, held.config)

    @abstractmethod
    def step(self, place: _Place, unit: StageUnit) -> tuple[bytes, tuple[bytes, ...], bool]:
        """Head and frames for whoever is next, and whether the unit costs compute."""

    def _fail(self, place: _Place, unit: StageUnit) -> None:
        """Fail as planned; returns for `error` only."""
        how = place.fail.how if place.fail is not None else "error"
        if how == "exit":
            os._exit(EXIT_STATUS)
        if how == "hang":
            threading.Event().wait()


# -- hear ---------------------------------------------------------------------------------------------


class _Ear(_Place):
    __slots__ = ("before", "context", "doomed", "echoes", "history", "memory", "playhead", "seen")

    def __init__(self, incarnation: int, config: StageConfig, stage: int, playhead: Playhead) -> None:
        super().__init__(incarnation, config, stage)
        self.playhead = playhead
        self.echoes = config.audio.kind == "echo"
        self.history = self.before = bytes(HISTORY_BYTES)
        """The last samples, and those before the unit that came last."""
        self.seen: list[str] = []
        """Units with camera frames that were not told yet, the newest `MAX_SEEN`."""
        self.context = 0
        self.memory = Memory(config.heard) if config.heard else None
        fail = config.fail
        self.doomed = fail if fail is not None and fail.how == "error" else None

    def hear(self, pcm: bytes) -> None:
        """Take a unit in."""
        self.context += 1
        if self.context >= self.config.context_units:
            self.context //= 2  # rollover: the older half is compacted away
        if self.echoes:
            self.before = self.history
            self.history = (self.history + pcm)[-HISTORY_BYTES:]


_REPLAYED: Final = encode(Decision(UNDECIDED, 0, 0, 0, False, 0, b""))
"""What the stages after the first are told of a unit that was heard before: they keep nothing of a session."""


class Hear(LoopbackStage):
    """Takes the sound in and follows the script. Frames out: for a spoken echo, the unit's sound with the
    last samples of the one before."""

    def _place(self, slot: Slot, config: StageConfig) -> _Place:
        playhead: Playhead
        if self.options.talk:
            playhead = TalkPlayhead(config, self.unit_ms)
        elif config.script and config.at.step < len(config.script):
            playhead = ScriptPlayhead(config)
        else:
            raise StageRefused("invalid_duplex_runtime_config", "the script does not have this step")
        return _Ear(slot.incarnation, config, self.stage, playhead)

    def _held(self, place: _Place) -> Held:
        assert isinstance(place, _Ear)
        head = place.playhead
        config = msgspec.structs.replace(place.config, speed=place.speed, at=head.at, epoch=head.epoch)
        memory = () if place.memory is None else place.memory.heard
        return Held(
            HELD_VERSION, self.stage, config, place.before, place.history, tuple(place.seen), place.context, memory
        )

    def _taken(self, slot: Slot, held: Held) -> _Place:
        place = self._place(slot, held.config)
        assert isinstance(place, _Ear)
        place.before, place.history = held.before, held.history
        place.seen, place.context = list(held.seen), held.context
        if held.config.heard:
            place.memory = Memory(held.config.heard, held.memory)
        return place

    def step(self, place: _Place, unit: StageUnit) -> tuple[bytes, tuple[bytes, ...], bool]:
        assert isinstance(place, _Ear)
        pcm = unit.frames[0] if unit.frames else b""
        head = decode_head(unit.head)
        if place.memory is not None and not head.flags & CONTINUATION:
            place.memory.hear(pcm)
        place.hear(pcm)
        if unit.replay:
            return _REPLAYED, (), True
        decision = place.playhead.decide(unit.epoch, head, pcm)
        if place.memory is not None and decision.kind == SPEAK and not decision.index:
            decision = msgspec.structs.replace(decision, seen=place.memory.tell())
        if len(unit.frames) > 1:
            place.seen = [*place.seen, _seen(unit)][-MAX_SEEN:]
        if place.seen and place.config.frames and decision.kind == SPEAK:
            decision = msgspec.structs.replace(decision, seen=f"{decision.seen} (saw {'; '.join(place.seen)})")
            place.seen = []
        doomed = place.doomed
        if doomed is not None and unit.unit == doomed.unit and unit.attempt < doomed.times:
            place.playhead.give_up()  # a later stage fails this unit, and with it the response
        frames: tuple[bytes, ...] = ()
        if place.echoes and decision.kind == SPEAK:
            frames = (place.before + pcm,)
        return encode(decision), frames, decision.kind != UNDECIDED

    def _fail(self, place: _Place, unit: StageUnit) -> None:
        super()._fail(place, unit)
        assert isinstance(place, _Ear)
        place.playhead.give_up()

    def usage(self) -> EngineUsage:
        held = sum(place.context for place in self._places.values() if isinstance(place, _Ear))
        return EngineUsage(len(self._places), self._total, kv_tokens=held)


def _seen(unit: StageUnit) -> str:
    """The frames of one unit: their sizes say which they were."""
    sizes = " and ".join(str(len(frame)) for frame in unit.frames[1:])
    return f"{sizes} bytes with unit {unit.unit}"


# -- word ---------------------------------------------------------------------------------------------


class _Lines(_Place):
    __slots__ = ("words",)

    def __init__(self, incarnation: int, config: StageConfig, stage: int) -> None:
        super().__init__(incarnation, config, stage)
        self.words: dict[int, tuple[str, ...]] = {}
        """The words of each step spoken so far."""


class Word(LoopbackStage):
    """Gives a spoken unit its share of the text and a call its words."""

    def _place(self, slot: Slot, config: StageConfig) -> _Place:
        return _Lines(slot.incarnation, config, self.stage)

    def step(self, place: _Place, unit: StageUnit) -> tuple[bytes, tuple[bytes, ...], bool]:
        assert isinstance(place, _Lines)
        decision = decode_decision(unit.head)
        if decision.kind == SPEAK:
            text, marks = self._share(place, decision)
            if decision.seen:
                text += decision.seen
                marks = (*marks, TextMark(len(text), self.unit_ms / place.speed))
            if text:
                decision = msgspec.structs.replace(decision, text=text, marks=marks)
                return encode(decision), unit.frames, True
        elif decision.kind == CALL:
            decision = msgspec.structs.replace(decision, calls=(self._call(place, decision, unit.unit),))
            return encode(decision), unit.frames, True
        return unit.head, unit.frames, decision.kind != UNDECIDED

    def _share(self, place: _Lines, decision: Decision) -> tuple[str, tuple[TextMark, ...]]:
        if self.options.talk:
            words = words_of(f"you spoke for {decision.heard_ms} ms")
            return share_of(words, decision.index, ANSWER_UNITS, self.unit_ms / place.speed)
        step = place.config.script[decision.step]
        words_here = place.words.get(decision.step)
        if words_here is None:
            words_here = place.words[decision.step] = words_of(step.text)
        return share_of(words_here, decision.index, step.units, self.unit_ms / place.speed)

    def _call(self, place: _Place, decision: Decision, unit: int) -> ToolCall:
        if self.options.talk:
            return ToolCall(arguments="{}", call_id=f"call_{unit}")
        step = place.config.script[decision.step]
        if step.malformed:
            return ToolCall(raw=f'<tool_call>{{"name": "{step.name}", "arguments": {step.text[:-1]}')
        return ToolCall(step.name, step.text, step.call_id or f"call_{unit}")


# -- voice --------------------------------------------------------------------------------------------


class Voice(LoopbackStage):
    """Makes the sound of a spoken unit: PCM16 at 24 kHz, one unit long."""

    def __init__(self, pipeline: PipelineSpec, stage: int, options: LoopbackOptions) -> None:
        super().__init__(pipeline, stage, options)
        self._samples = options.unit_ms * OUTPUT_RATE_HZ // 1000
        self._tones = ToneBank(OUTPUT_RATE_HZ)

    def warm_up(self) -> None:
        self._tones.unit(440.0, 0, self._samples)
        upsample(bytes(HISTORY_BYTES + self.unit_ms * 64))

    def step(self, place: _Place, unit: StageUnit) -> tuple[bytes, tuple[bytes, ...], bool]:
        decision = decode_decision(unit.head)
        if decision.kind != SPEAK:
            return unit.head, (), decision.kind != UNDECIDED
        audio = place.config.audio
        samples = self._samples if place.speed == 1.0 else round(self._samples / place.speed)
        if audio.kind == "tone":
            return unit.head, (self._tones.unit(audio.hz, decision.spoken, samples),), True
        if audio.kind == "echo":
            return unit.head, (upsample(unit.frames[0]),), True
        return unit.head, (bytes(samples * 2),), True


# -- pack ---------------------------------------------------------------------------------------------


class Pack(LoopbackStage):
    """Makes the session's result of a decision."""

    to = SESSION

    def step(self, place: _Place, unit: StageUnit) -> tuple[bytes, tuple[bytes, ...], bool]:
        decision = decode_decision(unit.head)
        kind = decision.kind
        if kind == SPEAK:
            output = ModelOutput(
                text=decision.text,
                audio_rate_hz=OUTPUT_RATE_HZ,
                marks=decision.marks,
                end_of_turn=decision.end_of_turn,
                state=decision.state,
            )
        elif kind == CALL:
            output = ModelOutput(tool_calls=decision.calls, end_of_turn=decision.end_of_turn, state=decision.state)
        else:
            output = ModelOutput(listen=kind == LISTEN, undecided=kind == UNDECIDED, state=decision.state)
        return encode_output(output), unit.frames, kind != UNDECIDED


def _uniform(seed: int, n: int) -> float:
    """A number from 0 to 1 that follows from the seed and n alone (splitmix64)."""
    z = (seed + (n + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) & _MASK) / 2**64
