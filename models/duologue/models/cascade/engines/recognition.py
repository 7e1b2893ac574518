"""Stage 1: what was said, and whose turn it is. Whisper in a thread, the turn-taker in the step loop.

Rule 1. A unit is confirmed in its own step; words come later, by `read`.
Rule 2. Final words go before those that decide an interruption, these before pauses, pauses before partial
        words. A full queue drops the newest and the turn-taker is told.
Rule 3. A user turn is numbered and told again after a cancel until the session is known to have it: what
        left under an older epoch is not looked at any more. The plugin drops what it knows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from duologue.hearing.mel import RATE, Floats
from duologue.model.engine import (
    NO_UNIT,
    SESSION,
    Emission,
    EngineUsage,
    Failure,
    Slot,
    StageEngine,
    StageRefused,
    StageUnit,
)
from duologue.model.outputs import ModelOutput, encode_output
from duologue.models.cascade.engines.sounds import SoundBuffer, is_hum, samples
from duologue.models.cascade.engines.whisper import Whisper
from duologue.models.cascade.engines.workshop import Workshop
from duologue.models.cascade.parts import RECOGNITION, locate
from duologue.models.cascade.settings import Settings
from duologue.models.cascade.turns import Act, Decode, Purpose, Recognised, TurnTaker
from duologue.models.cascade.wire import HeardUnit, SlotConfig, Told

_log = logging.getLogger("duologue.cascade")
_encoder = msgspec.msgpack.Encoder()
_units = msgspec.msgpack.Decoder(HeardUnit)
_configs = msgspec.msgpack.Decoder(SlotConfig)
_CONFIRMED = encode_output(ModelOutput())
MAX_UNHEARD = 8
"""User turns kept to be told again."""
JOBS_PER_SLOT = 4

Request = tuple[Slot, int]


class _Listener:
    """What recognition keeps of one session."""

    def __init__(self, settings: Settings, turns_heard: int) -> None:
        self.taker = TurnTaker(settings.turns, settings.recognition.partial_ms)
        self.sound = SoundBuffer()
        self.turn_id = 0
        self.turns = turns_heard
        self.unheard: list[tuple[int, bytes]] = []


class RecognitionEngine(StageEngine):
    def __init__(self, settings: Settings, slots: int) -> None:
        self._settings = settings
        self._slots_total = slots
        self._listeners: dict[Slot, _Listener] = {}
        self._folder = locate(RECOGNITION, settings.recognition.model_path)
        self._whisper: Whisper
        self._desk: Workshop[Request, Recognised] | None = None
        self._ready: list[Emission] = []

    def warm_up(self) -> None:
        options = self._settings.recognition
        self._whisper = Whisper(self._folder, options.threads, options.min_confidence, options.max_no_speech)
        self._whisper.transcribe(samples(bytes(4 * RATE)))
        capacity = max(JOBS_PER_SLOT, JOBS_PER_SLOT * self._slots_total)
        self._desk = Workshop("cascade-recognition", threads=1, capacity=capacity, done=lambda: self.wake())

    def open(self, slot: Slot, config: bytes) -> None:
        if len(self._listeners) >= self._slots_total:
            raise StageRefused("resource_exhausted", "recognition has no free slot")
        try:
            heard = _configs.decode(config).turns_heard if config else 0
        except msgspec.DecodeError as error:
            raise StageRefused("invalid_duplex_runtime_config", f"recognition: {error}") from None
        self._listeners[slot] = _Listener(self._settings, heard)

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        emissions: list[Emission] = []
        for unit in batch:
            listener = self._listeners[unit.slot]
            heard = _units.decode(unit.head)
            try:
                listener.sound.append(heard.start_ms, samples(unit.frames[0]))
            except (IndexError, ValueError):
                failure = Failure("bad_unit", "a unit without float32 sound")
                emissions.append(Emission(unit.slot, SESSION, unit.unit, unit.turn_id, failure=failure))
                continue
            listener.turn_id = unit.turn_id
            listener.unheard = [told for told in listener.unheard if told[0] > heard.turns_heard]
            outputs = self._act(unit.slot, listener, listener.taker.hear(heard))
            listener.sound.forget(listener.taker.keep_from_ms)
            last = outputs.pop() if outputs else _CONFIRMED
            emissions += [
                Emission(unit.slot, SESSION, unit.unit, unit.turn_id, output, last=False) for output in outputs
            ]
            emissions.append(Emission(unit.slot, SESSION, unit.unit, unit.turn_id, last))
        return emissions

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        return False

    def read(self) -> Sequence[Emission]:
        if self._desk is not None:
            for (slot, ticket), result in self._desk.take():
                listener = self._listeners.get(slot)
                if listener is None:
                    continue
                if isinstance(result, Exception):
                    _log.error("recognition failed: %s", result)
                    acts = listener.taker.skipped(ticket)
                else:
                    acts = listener.taker.recognised(ticket, result)
                self._tell(slot, listener, self._act(slot, listener, acts))
        ready, self._ready = self._ready, []
        return ready

    def cancel(self, slot: Slot, epoch: int) -> None:
        """What was heard stays. Turns that left just before may not have been looked at: tell them again."""
        listener = self._listeners.get(slot)
        if listener is not None and listener.unheard:
            self._tell(slot, listener, [output for _, output in listener.unheard])
            self.wake()

    def close(self, slot: Slot) -> None:
        if self._listeners.pop(slot, None) is not None and self._desk is not None:
            self._desk.withdraw(lambda request: request[0] == slot)

    def usage(self) -> EngineUsage:
        held = sum(listener.sound.state_bytes for listener in self._listeners.values())
        return EngineUsage(len(self._listeners), self._slots_total, state_bytes=held)

    @property
    def busy(self) -> bool:
        """Words are being recognised, or wait to be told."""
        return (self._desk is not None and self._desk.busy) or bool(self._ready)

    def shut_down(self) -> None:
        if self._desk is not None:
            self._desk.close()

    def _act(self, slot: Slot, listener: _Listener, acts: Sequence[Act]) -> list[bytes]:
        """Carry out what the turn-taker wants; the outputs, encoded."""
        outputs = []
        waiting = list(acts)
        while waiting:
            act = waiting.pop(0)
            if isinstance(act, Decode):
                if not self._recognise(slot, listener, act):
                    waiting[:0] = listener.taker.skipped(act.ticket)
            elif act.user_turn is not None:
                outputs.append(self._number(listener, act))
            else:
                outputs.append(encode_output(act))
        return outputs

    def _number(self, listener: _Listener, output: ModelOutput) -> bytes:
        listener.turns += 1
        told = msgspec.structs.replace(output, state=_encoder.encode(Told(listener.turns)))
        encoded = encode_output(told)
        listener.unheard = [*listener.unheard, (listener.turns, encoded)][-MAX_UNHEARD:]
        return encoded

    def _tell(self, slot: Slot, listener: _Listener, outputs: Iterable[bytes]) -> None:
        self._ready += [Emission(slot, SESSION, NO_UNIT, listener.turn_id, output) for output in outputs]

    def _recognise(self, slot: Slot, listener: _Listener, decode: Decode) -> bool:
        if self._desk is None:
            return False
        sound = listener.sound.span(decode.from_ms, decode.to_ms)
        over = decode.purpose is Purpose.OVERLAP
        # A newer question about the same speech makes older ones idle.
        if decode.purpose is not Purpose.FINAL:
            self._desk.withdraw(lambda request: request[0] == slot and listener.taker.idle(request[1]))
        return self._desk.submit(decode.purpose, (slot, decode.ticket), lambda: self._listen(sound, over))

    def _listen(self, sound: Floats, over: bool) -> Recognised:
        """In the recogniser's thread."""
        if not over:
            return Recognised(self._whisper.transcribe(sound))
        heard = self._whisper.listen(sound[-28 * RATE :], hinted=True)
        return Recognised(heard.text, heard.confidence, is_hum(sound))
