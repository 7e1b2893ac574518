"""Stage 2: what to say. A language model streams; its text goes on by clause, as soon as one is complete.

Rule 1. One answer for each slot. A cancel ends it; what the model still says then is not read.
        When enough was said the model in this process is stopped; one at a URL may end, and count its tokens.
Rule 2. Every request is settled: clauses and a last one, or functions to be called, or a coded failure, or a coded
        empty answer. Functions are told when the model has said all; its words come before or without them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

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
from duologue.model.outputs import ModelOutput, Usage, encode_output
from duologue.model.pipeline import PipelineError
from duologue.models.cascade.chat import asked_weight, within
from duologue.models.cascade.clauses import ClauseCutter
from duologue.models.cascade.engines.language import Ending, LanguageError, LanguageModel
from duologue.models.cascade.parts import LANGUAGE, locate, need_runtime, need_vllm
from duologue.models.cascade.settings import Settings, Thinker
from duologue.models.cascade.wire import Ask, Clause

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Ask)
CHARS_PER_TOKEN = 12
"""No token is longer on average: more characters than this means that the limit was not kept."""
MALFORMED = "malformed_function_call"
RETRIES = 2
"""How often a prompt that did not fit is cut in half and asked again."""


def language_model(options: Thinker, slots: int) -> LanguageModel:
    """The one that the TOML asks for. Raises PipelineError."""
    if options.engine == "vllm":
        need_vllm()
        from duologue.models.cascade.engines.vllm_language import VllmLanguage

        return VllmLanguage(options, slots)
    if options.url:
        need_runtime("httpx")
        from duologue.models.cascade.engines.remote_language import RemoteLanguage

        key = os.environ.get(options.api_key_env, "") if options.api_key_env else ""
        if options.api_key_env and not key:
            raise PipelineError(f"cascade: options.thinker.api_key_env: {options.api_key_env} is not set")
        return RemoteLanguage(options, key)
    need_runtime("xllamacpp")
    from duologue.models.cascade.engines.local_language import LocalLanguage

    return LocalLanguage(locate(LANGUAGE, options.model_path), options)


class _Answer:
    """One answer in the making; also the listener of its model, called from that one's threads."""

    def __init__(self, engine: ThinkerEngine, unit: StageUnit, ask: Ask, max_sentences: int) -> None:
        self._engine = engine
        self.unit = unit
        self.ask = ask
        self.retries = 0
        self.cancelled = False
        self.cutter = ClauseCutter(max_sentences)
        self.clauses = 0
        self._chars = self._deltas = 0

    def said(self, delta: str) -> None:
        """A model that does not keep to its limit is cut off here."""
        if self._chars > CHARS_PER_TOKEN * self.ask.max_tokens:
            return
        self._chars += len(delta)
        self._deltas += 1
        self._engine.post(self, delta)
        if self._chars > CHARS_PER_TOKEN * self.ask.max_tokens:
            self._engine.post(self, Ending(complete=False))

    def ended(self, ending: Ending) -> None:
        self._engine.post(self, ending)

    def estimated(self) -> Usage:
        """What it took until now, of a model that is cut off before it has told."""
        return Usage(input_text_tokens=asked_weight(self.ask), output_text_tokens=self._deltas)

    def failed(self, error: LanguageError) -> None:
        self._engine.post(self, error)


class ThinkerEngine(StageEngine):
    def __init__(self, settings: Settings, slots: int) -> None:
        self._options = settings.thinker
        self._slots_total = slots
        self._slots: set[Slot] = set()
        self._answers: dict[Slot, _Answer] = {}
        self._model = language_model(self._options, slots)
        # Bounded by the answers that run: each says at most `max_tokens`.
        self._heard: deque[tuple[_Answer, str | Ending | LanguageError]] = deque()

    def warm_up(self) -> None:
        try:
            self._model.load()
        except LanguageError as error:
            raise PipelineError(f"cascade: {error.message}") from error

    def post(self, answer: _Answer, event: str | Ending | LanguageError) -> None:
        """From the model's threads."""
        self._heard.append((answer, event))
        self.wake()

    def open(self, slot: Slot, config: bytes) -> None:
        if len(self._slots) >= self._slots_total:
            raise StageRefused("resource_exhausted", "the thinker has no free slot")
        try:
            self._model.open(slot.index)
        except LanguageError as error:
            raise StageRefused(error.code, error.message) from None
        self._slots.add(slot)

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        emissions = []
        for unit in batch:
            if unit.slot in self._answers:
                older = self._drop(unit.slot)
                failure = Failure("superseded", "another answer was asked for")
                emissions.append(Emission(unit.slot, SESSION, older.unit.unit, older.unit.turn_id, failure=failure))
            ask = _decoder.decode(unit.head)
            answer = _Answer(self, unit, ask, self._options.max_sentences)
            self._answers[unit.slot] = answer
            self._model.start(unit.slot.index, ask, answer)
        return emissions

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        return False

    def read(self) -> Sequence[Emission]:
        emissions: list[Emission] = []
        while self._heard:
            answer, event = self._heard.popleft()
            if answer.cancelled or self._answers.get(answer.unit.slot) is not answer:
                continue
            if isinstance(event, LanguageError):
                emissions += self._fail(answer, event)
            elif isinstance(event, str):
                emissions += self._pass_on(answer, answer.cutter.feed(event))
                if answer.cutter.full and not self._options.url:
                    emissions += self._end(answer, Ending(usage=answer.estimated()))
            else:
                emissions += self._pass_on(answer, answer.cutter.finish(complete=event.complete))
                emissions += self._end(answer, event)
        return emissions

    def cancel(self, slot: Slot, epoch: int) -> None:
        answer = self._answers.get(slot)
        if answer is not None and answer.unit.epoch < epoch:
            self._drop(slot)

    def close(self, slot: Slot) -> None:
        if slot not in self._slots:
            return
        self._slots.discard(slot)
        if slot in self._answers:
            self._drop(slot)
        self._model.leave(slot.index)

    def usage(self) -> EngineUsage:
        tokens = self._model.held_tokens()
        if tokens is None:
            tokens = sum(asked_weight(answer.ask) for answer in self._answers.values())
        return EngineUsage(len(self._slots), self._slots_total, kv_tokens=tokens)

    @property
    def busy(self) -> bool:
        """An answer is being thought."""
        return bool(self._answers or self._heard)

    def shut_down(self) -> None:
        for slot in list(self._answers):
            self._drop(slot)
        self._model.close()

    def _drop(self, slot: Slot) -> _Answer:
        answer = self._answers.pop(slot)
        answer.cancelled = True
        self._model.stop(answer)
        return answer

    def _pass_on(self, answer: _Answer, pieces: Sequence[str]) -> list[Emission]:
        return [self._clause(answer, piece, last=False) for piece in pieces]

    def _clause(self, answer: _Answer, text: str, *, last: bool, error: LanguageError | None = None) -> Emission:
        clause = Clause(answer.clauses, text, last, answer.ask.speed)
        if error is not None:
            clause = msgspec.structs.replace(clause, error_code=error.code, error=error.message)
        head = _encoder.encode(clause)
        answer.clauses += 1
        return Emission(answer.unit.slot, NEXT, answer.unit.unit, answer.unit.turn_id, head, last=last)

    def _end(self, answer: _Answer, ending: Ending) -> list[Emission]:
        """All was said. The model may still be talking; nobody listens."""
        broken = LanguageError(MALFORMED, "the language model called a function in a way that cannot be carried out")
        if any(not call.name for call in ending.calls):
            told = [self._told(answer, ModelOutput(tool_calls=ending.calls, usage=ending.usage), last=False)]
            return [*told, *self._fail(answer, broken)]
        self._drop(answer.unit.slot)
        if answer.clauses:
            beside = ModelOutput(tool_calls=ending.calls, usage=ending.usage)
            told = [] if beside == ModelOutput() else [self._told(answer, beside, last=False)]
            return [*told, self._clause(answer, "", last=True)]
        if ending.calls:
            return [self._told(answer, ModelOutput(tool_calls=ending.calls, end_of_turn=True, usage=ending.usage))]
        empty = ModelOutput(
            end_of_turn=True, error_code="empty_answer", error="the language model said nothing", usage=ending.usage
        )
        return [self._told(answer, empty)]

    def _told(self, answer: _Answer, output: ModelOutput, *, last: bool = True) -> Emission:
        """Straight to the session, past the voice."""
        unit = answer.unit
        return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, encode_output(output), last=last)

    def _fail(self, answer: _Answer, error: LanguageError) -> list[Emission]:
        if error.code == "context_exhausted" and answer.retries < RETRIES and len(answer.ask.messages) > 1:
            answer.retries += 1
            answer.ask = within(answer.ask, answer.ask.max_tokens + asked_weight(answer.ask) // 2)
            self._model.start(answer.unit.slot.index, answer.ask, answer)
            return []
        self._drop(answer.unit.slot)
        if answer.clauses:
            # Behind what is being spoken, so that its sound still comes before the failure.
            return [self._clause(answer, "", last=True, error=error)]
        failure = Failure(error.code, error.message)
        return [Emission(answer.unit.slot, SESSION, answer.unit.unit, answer.unit.turn_id, failure=failure)]
