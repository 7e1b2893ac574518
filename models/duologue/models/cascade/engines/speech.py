"""Stage 3: the voice. Clauses become sound in a thread and leave in chunks with their words.

Rule 1. A chunk carries the words that end in it, and where; so history never holds more than was heard.
Rule 2. The last chunk of what is there is held back until it is known whether the turn ends with it.
Rule 3. Clauses of one answer are spoken in order; first clauses go before later ones of other sessions.
Rule 4. Every clause is settled in order, every answer ends or fails once. A cancel forgets the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from duologue.model.engine import (
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
from duologue.models.cascade.chunks import Chunk, Spoken, chunks, halves
from duologue.models.cascade.engines.voice import Voice
from duologue.models.cascade.engines.workshop import Workshop
from duologue.models.cascade.parts import VOICE, locate, need_runtime
from duologue.models.cascade.settings import VOICE_RATE_HZ, Settings
from duologue.models.cascade.wire import Clause

_log = logging.getLogger("duologue.cascade")
_decoder = msgspec.msgpack.Decoder(Clause)
_NOTHING = encode_output(ModelOutput())
CLAUSES_PER_SLOT = 32
"""Clauses that may wait for the synthesiser; an answer has a few."""


class _Answer:
    """One answer on its way out."""

    def __init__(self, unit: StageUnit) -> None:
        self.unit = unit
        self.held: Chunk | None = None
        self.sounded = False
        self.failed = False
        self.waiting = 0
        """Clauses that are not settled: each is a unit of its own to the worker."""


Key = tuple[_Answer, Clause]


class SpeechEngine(StageEngine):
    def __init__(self, settings: Settings, slots: int) -> None:
        need_runtime("hibari", "onnxruntime")
        self._options = settings.speech
        self._slots_total = slots
        self._slots: set[Slot] = set()
        self._answers: dict[Slot, _Answer] = {}
        self._path = locate(VOICE, settings.speech.model_path)
        self._voice: Voice
        self._desk: Workshop[Key, Spoken] | None = None

    def warm_up(self) -> None:
        self._voice = Voice(self._path, self._options.threads)
        self._voice.say("Good morning, here I am.", 1.0)
        capacity = CLAUSES_PER_SLOT * max(1, self._slots_total)
        self._desk = Workshop("cascade-speech", threads=1, capacity=capacity, done=lambda: self.wake())

    def open(self, slot: Slot, config: bytes) -> None:
        if len(self._slots) >= self._slots_total:
            raise StageRefused("resource_exhausted", "speech has no free slot")
        self._slots.add(slot)

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        emissions: list[Emission] = []
        for unit in batch:
            clause = _decoder.decode(unit.head)
            answer = self._answers.get(unit.slot)
            if answer is None or answer.unit.unit != unit.unit:
                if answer is not None:
                    emissions += self._supersede(answer)
                answer = self._answers[unit.slot] = _Answer(unit)
            answer.waiting += 1
            if self._desk is None or not self._desk.submit(
                min(clause.number, 1), (answer, clause), partial(self._say, clause)
            ):
                emissions += self._fail(answer, clause, "speech_overloaded", "too much waits to be spoken")
        return emissions

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        return False

    def read(self) -> Sequence[Emission]:
        emissions: list[Emission] = []
        for (answer, clause), result in self._desk.take() if self._desk is not None else ():
            if self._answers.get(answer.unit.slot) is not answer:
                continue
            if answer.failed:
                emissions.append(self._settle(answer, clause))
            elif isinstance(result, Exception):
                _log.error("synthesis failed: %s", result)
                emissions += self._fail(answer, clause, "speech_failed", str(result) or type(result).__name__)
            else:
                emissions += self._speak(answer, clause, result)
        return emissions

    def cancel(self, slot: Slot, epoch: int) -> None:
        answer = self._answers.get(slot)
        if answer is not None and answer.unit.epoch < epoch:
            self._forget(answer)

    def close(self, slot: Slot) -> None:
        self._slots.discard(slot)
        if (answer := self._answers.get(slot)) is not None:
            self._forget(answer)

    def usage(self) -> EngineUsage:
        held = sum(len(a.held.pcm) for a in self._answers.values() if a.held is not None)
        return EngineUsage(len(self._slots), self._slots_total, state_bytes=held)

    @property
    def busy(self) -> bool:
        """Something is being spoken."""
        return self._desk is not None and self._desk.busy

    def shut_down(self) -> None:
        if self._desk is not None:
            self._desk.close()

    def _say(self, clause: Clause) -> Spoken:
        """In the synthesiser's thread."""
        if not clause.text:
            return Spoken(b"", ())
        return self._voice.say(clause.text, clause.speed * self._options.speed)

    def _forget(self, answer: _Answer) -> None:
        del self._answers[answer.unit.slot]
        if self._desk is not None:
            self._desk.withdraw(lambda key: key[0] is answer)

    def _speak(self, answer: _Answer, clause: Clause, spoken: Spoken) -> list[Emission]:
        """Everything of this clause but the chunk that may be the last of the turn."""
        ready = []
        for chunk in chunks(clause.text, spoken, self._options.chunk_ms):
            if answer.held is not None:
                ready.append(answer.held)
            answer.held = chunk
        if not answer.sounded and not ready and answer.held is not None:
            # The first sound leaves at once, even if it is all that is there.
            first, answer.held = halves(answer.held)
            ready += [] if first is None else [first]
        answer.sounded = answer.sounded or bool(ready)
        if clause.last:
            return self._end(answer, clause, ready)
        if not ready:
            return [self._settle(answer, clause)]
        answer.waiting -= 1
        return [self._emit(answer, chunk, last=chunk is ready[-1]) for chunk in ready]

    def _end(self, answer: _Answer, clause: Clause, ready: list[Chunk]) -> list[Emission]:
        emissions = [self._emit(answer, chunk, last=False) for chunk in ready]
        if clause.error_code:
            if answer.held is not None:
                emissions.append(self._emit(answer, answer.held, last=False))
            return [*emissions, *self._fail(answer, clause, clause.error_code, clause.error)]
        if answer.held is None:
            return self._fail(answer, clause, "empty_answer", "nothing in the answer can be spoken")
        self._forget(answer)
        return [*emissions, self._emit(answer, answer.held, last=True, end_of_turn=True)]

    def _emit(self, answer: _Answer, chunk: Chunk, *, last: bool, end_of_turn: bool = False) -> Emission:
        output = ModelOutput(text=chunk.text, audio_rate_hz=VOICE_RATE_HZ, marks=chunk.marks, end_of_turn=end_of_turn)
        unit = answer.unit
        return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, encode_output(output), (chunk.pcm,), last)

    def _settle(self, answer: _Answer, clause: Clause) -> Emission:
        """A clause of which nothing leaves now."""
        answer.waiting -= 1
        if clause.last:
            self._forget(answer)
        return Emission(answer.unit.slot, SESSION, answer.unit.unit, answer.unit.turn_id, _NOTHING)

    def _fail(self, answer: _Answer, clause: Clause, code: str, message: str) -> list[Emission]:
        """The answer is over; clauses that still come of it are settled in silence."""
        answer.failed = True
        answer.waiting -= 1
        if clause.last:
            self._forget(answer)
        unit = answer.unit
        return [Emission(unit.slot, SESSION, unit.unit, unit.turn_id, failure=Failure(code, message))]

    def _supersede(self, answer: _Answer) -> list[Emission]:
        self._forget(answer)
        unit = answer.unit
        return [Emission(unit.slot, SESSION, unit.unit, unit.turn_id, _NOTHING)] * answer.waiting
