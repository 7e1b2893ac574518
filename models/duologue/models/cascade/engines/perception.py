"""Stage 0: who speaks when. Streaming VAD over all sessions of a step; the end-of-turn model beside it.

Rule 1. Every unit goes on to recognition in the same step, with what is known by then.
Rule 2. The end-of-turn model runs in a thread; its answer travels with the next unit of the same pause, and
        is forgotten if speech has gone on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from duologue.hearing.end_of_turn import WINDOW_S, EndOfTurn
from duologue.hearing.mel import RATE
from duologue.hearing.voice_activity import FRAME, Stream, VoiceDetector
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
from duologue.models.cascade.engines.sounds import SoundBuffer, samples
from duologue.models.cascade.engines.tracker import Tracker
from duologue.models.cascade.engines.workshop import Workshop
from duologue.models.cascade.parts import END_OF_TURN, VOICE_ACTIVITY, locate
from duologue.models.cascade.settings import Settings
from duologue.models.cascade.wire import UNKNOWN, HeardUnit, UnitHead

_log = logging.getLogger("duologue.cascade")
_PER_MS = RATE // 1000
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(UnitHead)

Pause = tuple[Slot, int]
"""One pause of one session: the slot and the sample at which voice ended."""


class _Ears:
    """What perception keeps of one session."""

    def __init__(self, settings: Settings) -> None:
        self.stream = Stream()
        self.tracker = Tracker(settings.perception)
        self.sound = SoundBuffer()
        self.asked = UNKNOWN
        """`voice_end` of the pause the end-of-turn model was asked about."""
        self.finished: float = UNKNOWN

    @property
    def state_bytes(self) -> int:
        return self.stream.state_bytes + self.sound.state_bytes


class PerceptionEngine(StageEngine):
    def __init__(self, settings: Settings, slots: int) -> None:
        self._settings = settings
        self._slots_total = slots
        self._ears: dict[Slot, _Ears] = {}
        self._vad_path = locate(VOICE_ACTIVITY, settings.perception.model_path)
        self._end_path = locate(END_OF_TURN, settings.perception.end_of_turn_path)
        self._vad: VoiceDetector
        self._end: EndOfTurn
        self._judges: Workshop[Pause, float] | None = None

    def warm_up(self) -> None:
        self._vad = VoiceDetector(self._vad_path)
        self._end = EndOfTurn(self._end_path)
        silence = samples(bytes(4 * RATE))
        self._vad.advance([Stream()], [silence])
        self._end.probability(silence)
        # Results wait for the next unit of their session: nobody has to be woken for them.
        self._judges = Workshop("cascade-end-of-turn", threads=1, capacity=max(2, self._slots_total), done=lambda: None)

    def open(self, slot: Slot, config: bytes) -> None:
        if len(self._ears) >= self._slots_total:
            raise StageRefused("resource_exhausted", "perception has no free slot")
        self._ears[slot] = _Ears(self._settings)

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        self._collect()
        emissions, ready, heads, sounds = [], [], [], []
        for unit in batch:
            head = _decoder.decode(unit.head)
            try:
                sound = samples(unit.frames[0])
            except (IndexError, ValueError):
                failure = Failure("bad_unit", "a unit without float32 sound")
                emissions.append(Emission(unit.slot, SESSION, unit.unit, unit.turn_id, failure=failure))
                continue
            ready.append(unit)
            heads.append(head)
            sounds.append(sound)
        ears = [self._ears[unit.slot] for unit in ready]
        waiting = [len(e.stream.pending) for e in ears]
        probabilities = self._vad.advance([e.stream for e in ears], sounds)
        for i, unit in enumerate(ready):
            first = heads[i].start_ms * _PER_MS - waiting[i]
            began = ears[i].tracker.follow(first, probabilities[i])
            ears[i].sound.append(heads[i].start_ms, sounds[i])
            heard = self._perceive(unit.slot, ears[i], heads[i], len(sounds[i]), began)
            emissions.append(Emission(unit.slot, NEXT, unit.unit, unit.turn_id, _encoder.encode(heard), unit.frames))
        return emissions

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        """About 150 us for each frame of 32 ms."""
        return sum(len(frame) for unit in batch for frame in unit.frames) > 4 * 6 * FRAME

    def cancel(self, slot: Slot, epoch: int) -> None:
        """What was heard stays."""

    def close(self, slot: Slot) -> None:
        if self._ears.pop(slot, None) is not None and self._judges is not None:
            self._judges.withdraw(lambda pause: pause[0] == slot)

    def usage(self) -> EngineUsage:
        held = sum(ears.state_bytes for ears in self._ears.values())
        return EngineUsage(len(self._ears), self._slots_total, state_bytes=held)

    @property
    def busy(self) -> bool:
        """The end-of-turn model is at work."""
        return self._judges is not None and self._judges.working

    def shut_down(self) -> None:
        if self._judges is not None:
            self._judges.close()

    def _perceive(self, slot: Slot, ears: _Ears, head: UnitHead, length: int, began: bool) -> HeardUnit:
        tracker = ears.tracker
        end_ms = head.start_ms + length // _PER_MS
        ears.sound.forget(end_ms - WINDOW_S * 1000)
        paused = not tracker.speaking and tracker.voice_end != -1
        if tracker.speaking or tracker.voice_end != ears.asked:
            ears.finished = UNKNOWN
        if head.auto and paused and tracker.voice_end != ears.asked:
            self._ask(slot, ears, end_ms)
        return HeardUnit(
            start_ms=head.start_ms,
            end_ms=end_ms,
            speaking=tracker.speaking,
            onset_ms=tracker.onset // _PER_MS if began else UNKNOWN,
            voice_end_ms=tracker.voice_end // _PER_MS if tracker.voice_end != -1 else UNKNOWN,
            finished=ears.finished if paused else UNKNOWN,
            auto=head.auto,
            final=head.final,
            response_open=head.response_open,
            force_listen=head.force_listen,
            turns_heard=head.turns_heard,
        )

    def _ask(self, slot: Slot, ears: _Ears, end_ms: int) -> None:
        """Once for each pause. A full queue means no advice for this one."""
        ears.asked = ears.tracker.voice_end
        sound = ears.sound.span(end_ms - WINDOW_S * 1000, end_ms)
        if self._judges is not None:
            self._judges.submit(0, (slot, ears.asked), lambda: self._end.probability(sound))

    def _collect(self) -> None:
        if self._judges is None:
            return
        for (slot, voice_end), result in self._judges.take():
            if isinstance(result, Exception):
                _log.warning("the end-of-turn model failed: %s", result)
                continue
            ears = self._ears.get(slot)
            if ears is not None and ears.asked == voice_end:
                ears.finished = result
