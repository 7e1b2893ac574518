"""The engine of a model that hears turns and writes answers: one resumable request of vLLM for each slot.

Rule 1. Slots and talks are the step's; the host's thread appends. Work of one slot is done in the order it came.
Rule 2. A turn's sound goes in when the turn is over, and only what is new: the conversation stays in the request's
        cache. A unit is consumed when it is heard; the one that asks, when it is answered, and those behind it then.
Rule 3. A cancel ends an answer after the append that is being made; what was said of it stays, and so does the cache.
Rule 4. A context that is full is begun anew (`context_rollover`), from what was written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

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
from duologue.model.outputs import ModelOutput, Usage, encode_output
from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.models.vllm_stream import wire
from duologue.models.vllm_stream.admission import NoRoom
from duologue.models.vllm_stream.host import HostError, HostSpec, VllmHost
from duologue.models.vllm_stream.options import MAX_WAITING, TurnOptions, read_options
from duologue.models.vllm_stream.stream import Answered, Stream, StreamError
from duologue.models.vllm_stream.talk import Answer, Talk
from duologue.runtime import metrics

ROLLOVER_AT: Final = 0.75
"""The share of its context that a session may have filled when an answer ends."""
_log = logging.getLogger("duologue.models.vllm")
_NOTHING: Final = encode_output(ModelOutput())
_Event = str | Answered | StreamError


def build(pipeline: PipelineSpec, stage_index: int) -> StageEngine:
    """Raises PipelineError: wrong options."""
    return TurnEngine(read_options(pipeline), pipeline.stages[stage_index].slots, pipeline.name)


class _Place:
    """One slot."""

    def __init__(self, slot: Slot, talk: Talk) -> None:
        self.slot, self.talk = slot, talk
        self.answer: Answer | None = None
        self.behind: list[StageUnit] = []
        """Units that came while an answer was made; the session has few in the pipeline at once."""
        self.waiting: set[Future[None]] = set()


class TurnEngine(StageEngine):
    """See the module."""

    def __init__(self, options: TurnOptions, slots: int, pipeline: str = "vllm") -> None:
        self._options, self._slots = options, slots
        self.host = VllmHost(
            HostSpec(options.model, slots, options.context_tokens, options.engine, options.sound_token)
        )
        self._cuts = metrics.WORKER_TURN_CUTS.labels(pipeline)
        self._places: dict[Slot, _Place] = {}
        # Grows in the host's thread; bounded by the answers that are made, each of `max_tokens`.
        self._events: deque[tuple[Slot, Answer, _Event]] = deque()

    def warm_up(self) -> None:
        try:
            self.host.load()
            self.host.submit(self._hello()).result()
        except (HostError, StreamError) as error:
            raise PipelineError(f"vllm: {error}") from error

    async def _hello(self) -> None:
        stream = Stream(self.host, self._options.context_tokens)
        talk = Talk(self.host, self._options, stream, wire.SlotConfig("", 2, 0.0))
        await talk.message(wire.Text("user", "Hello."))
        await talk.answer(Answer(0, 0, 0), lambda text: None)
        await stream.close()

    # -- orders ----------------------------------------------------------------------------------------

    def open(self, slot: Slot, config: bytes) -> None:
        try:
            wanted = wire.decode_config(config)
        except msgspec.MsgspecError as error:
            raise StageRefused("invalid_duplex_runtime_config", f"vllm: {error}") from None
        limit = self._options.context_tokens
        try:
            self.host.admission.take(slot, limit)
        except NoRoom as error:
            raise StageRefused("resource_exhausted", str(error)) from None
        self._places[slot] = _Place(slot, Talk(self.host, self._options, Stream(self.host, limit), wanted))

    def cancel(self, slot: Slot, epoch: int) -> None:
        place = self._places[slot]
        place.talk.forget_sound()
        place.behind.clear()
        answer, place.answer = place.answer, None
        if answer is not None and answer.epoch < epoch:
            answer.stopped = True

    def control(self, slot: Slot, kind: str, body: bytes) -> None:
        if kind == wire.UPDATE:
            self._places[slot].talk.config = wire.decode_config(body)

    def close(self, slot: Slot) -> None:
        place = self._places.pop(slot, None)
        if place is None:
            return
        for future in list(place.waiting):
            future.cancel()
        self.host.submit(place.talk.stream.close())
        self.host.admission.give(slot)

    # -- units -----------------------------------------------------------------------------------------

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        return [emission for unit in batch for emission in self._append(unit)]

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        """Sound is only gathered here; vLLM works elsewhere."""
        return False

    def _append(self, unit: StageUnit) -> list[Emission]:
        place, head = self._places[unit.slot], wire.decode_head(unit.head)
        if len(place.waiting) >= MAX_WAITING:
            return [self._refuse(unit, "stage_backlog", f"{MAX_WAITING} orders of this session wait already")]
        if head.item is not None:
            self._work(place, head.item)
        elif unit.frames:
            if not place.talk.hear(bytes(unit.frames[0])):
                self._cuts.inc()
        elif not head.flags & wire.CONTINUATION:
            return [self._refuse(unit, "bad_unit", "a unit is sound, a message or a silence that the session made")]
        if head.flags & wire.FINAL and not unit.replay:
            self._work(place, place.talk.end_turn())
        if head.flags & wire.ASK and not unit.replay:
            return self._ask(place, unit)
        if place.answer is not None:
            place.behind.append(unit)  # units land in their order
            return []
        return [_consumed(unit)]

    def _ask(self, place: _Place, unit: StageUnit) -> list[Emission]:
        older = place.answer
        landed = [] if older is None else self._landed(place, older, ModelOutput())
        if older is not None:  # the session asks for one at a time
            older.stopped = True
        answer = place.answer = Answer(unit.turn_id, unit.epoch, unit.unit)
        self._work(place, answer)
        return landed

    def _landed(self, place: _Place, answer: Answer, output: ModelOutput) -> list[Emission]:
        """The end of an answer's unit, and of those that came behind it."""
        place.answer = None
        behind, place.behind = place.behind, []
        head = encode_output(output)
        return [
            Emission(place.slot, SESSION, answer.unit, answer.turn_id, head),
            *(_consumed(unit) for unit in behind),
        ]

    def _refuse(self, unit: StageUnit, code: str, message: str) -> Emission:
        return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, failure=Failure(code, message))

    def _work(self, place: _Place, what: wire.Text | Answer | tuple[bytes, ...]) -> None:
        future = self.host.submit(self._carry_out(place, what))
        place.waiting.add(future)
        future.add_done_callback(place.waiting.discard)

    async def _carry_out(self, place: _Place, what: wire.Text | Answer | tuple[bytes, ...]) -> None:
        """In the host's loop. Tasks begin in the order they were submitted, and the talk's lock keeps it."""
        answer = what if isinstance(what, Answer) else None
        try:
            if isinstance(what, Answer):
                done = await place.talk.answer(what, lambda text: self._post(place.slot, what, text))
                self._post(place.slot, what, done)
            elif isinstance(what, wire.Text):
                await place.talk.message(what)
            else:
                await place.talk.sound(what)
        except StreamError as error:
            if answer is not None:  # the talk remembers the others, and fails the answer to them
                self._post(place.slot, answer, error)
        except Exception:  # nobody else would hear of it, and the answer would never end
            _log.exception("an append failed")
            if answer is not None:
                self._post(place.slot, answer, StreamError("engine_error", "the language model's engine failed"))

    def _post(self, slot: Slot, answer: Answer, event: _Event) -> None:
        self._events.append((slot, answer, event))
        self.wake()

    # -- results ---------------------------------------------------------------------------------------

    def read(self) -> Sequence[Emission]:
        emissions: list[Emission] = []
        while self._events:
            slot, answer, event = self._events.popleft()
            place = self._places.get(slot)
            if place is not None and place.answer is answer:  # it was not cancelled since
                emissions += self._told(place, answer, event)
        return emissions

    def _told(self, place: _Place, answer: Answer, event: _Event) -> list[Emission]:
        if isinstance(event, str):
            head = encode_output(ModelOutput(text=event))
            return [Emission(place.slot, SESSION, answer.unit, answer.turn_id, head, last=False)]
        output = _broken(event) if isinstance(event, StreamError) else self._ended(place, event)
        return self._landed(place, answer, output)

    def _ended(self, place: _Place, answered: Answered) -> ModelOutput:
        """With the context nearly full the session binds anew while nobody speaks."""
        full = place.talk.stream.context.tokens > self._options.context_tokens * ROLLOVER_AT
        usage = Usage(input_text_tokens=answered.read, output_text_tokens=answered.made, cached_tokens=answered.cached)
        return ModelOutput(end_of_turn=True, usage=usage, rebind="context_rollover" if full else "")

    def usage(self) -> EngineUsage:
        places = self._places.values()
        return EngineUsage(
            len(places),
            self._slots,
            state_bytes=sum(place.talk.size_bytes for place in places),
            kv_tokens=sum(place.talk.stream.context.tokens for place in places),
        )

    def shut_down(self) -> None:
        for slot in list(self._places):
            self.close(slot)
        self.host.close(_done())


async def _done() -> None:
    """Streams are closed with their slots."""


def _broken(error: StreamError) -> ModelOutput:
    """A context that is full is of no more use: the session binds anew."""
    rebind = "context_rollover" if error.code == "context_exhausted" else ""
    return ModelOutput(error_code=error.code, error=error.message, rebind=rebind)


def _consumed(unit: StageUnit) -> Emission:
    return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, _NOTHING)
