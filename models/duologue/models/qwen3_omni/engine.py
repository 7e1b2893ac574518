"""The engine of Qwen3-Omni: a conversation for each slot, and the answers that are being made. For stage workers only.

Rule 1. Everything is decided in the step's thread; the thread of `server` reads and writes.
Rule 2. A unit is consumed when it is heard. An answer comes between appends, and belongs to the turn that asked.
Rule 3. A cancel closes the answer's HTTP response. What was heard of it stays in the conversation, and no more.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

import msgspec
import numpy as np

from duologue.model.engine import NO_UNIT, SESSION, Emission, EngineUsage, Slot, StageEngine, StageRefused, StageUnit
from duologue.model.outputs import ModelOutput, encode_output
from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.models.qwen3_omni import heads
from duologue.models.qwen3_omni.options import Options, read_options
from duologue.models.qwen3_omni.server import MAX_WAITING, ChatServer
from duologue.models.qwen3_omni.stream import AnswerStream, Piece, StreamError
from duologue.models.qwen3_omni.talk import Called, Talk, heard_of
from duologue.runtime import metrics

_NOTHING: Final = encode_output(ModelOutput())
_Event = Piece | AnswerStream | StreamError


def build(pipeline: PipelineSpec, stage_index: int) -> StageEngine:
    """Raises PipelineError: wrong options, or no key where one is named."""
    options = read_options(pipeline)
    key = os.environ.get(options.api_key_env, "") if options.api_key_env else ""
    if options.api_key_env and not key:
        raise PipelineError(f"{pipeline.name}: options.api_key_env: {options.api_key_env} is not set")
    return TurnEngine(pipeline.name, options, pipeline.stages[stage_index].slots, key)


class _Answer:
    """One answer that is being made (`server.Asker`)."""

    def __init__(self, engine: TurnEngine, place: _Place, turn_id: int) -> None:
        self.place: Final = place
        self.turn_id = turn_id
        self.future: Future[None]
        self.text = ""
        self.ms = 0.0
        self.heard_ms: int | None = None
        self.taken = 0
        self._engine = engine
        self._read = 0
        self._room = asyncio.Event()

    def said(self, piece: Piece) -> None:
        self._read += 1
        self._engine.post(self, piece)

    def ended(self, stream: AnswerStream) -> None:
        self._engine.post(self, stream)

    def failed(self, error: StreamError) -> None:
        self._engine.post(self, error)

    def waiting(self) -> int:
        return self._read - self.taken

    async def room(self) -> None:
        self._engine.count_wait()
        self._room.clear()
        if self.waiting() > MAX_WAITING:  # not taken meanwhile
            await self._room.wait()

    def make_room(self) -> None:
        """In the loop's thread."""
        self._room.set()


class _Place:
    """One slot."""

    def __init__(self, slot: Slot, config: heads.SlotConfig, talk: Talk) -> None:
        self.slot = slot
        self.config = config
        self.talk = talk
        self.answer: _Answer | None = None
        self.last: _Answer | None = None
        """The latest that has ended."""


class TurnEngine(StageEngine):
    """See the module."""

    def __init__(self, pipeline: str, options: Options, slots: int, api_key: str) -> None:
        self._options = options
        self._slots = slots
        self._server = ChatServer(options, api_key, f"{pipeline}-server")
        self._places: dict[Slot, _Place] = {}
        self._events: deque[tuple[_Answer, _Event]] = deque()
        """Grows in the server's thread; bounded for each answer."""
        self._results = {
            result: metrics.WORKER_TURN_REQUESTS.labels(pipeline, result)
            for result in ("completed", "cancelled", "failed")
        }
        self._waits = metrics.WORKER_TURN_WAITS.labels(pipeline)
        self._cuts = metrics.WORKER_TURN_CUTS.labels(pipeline)

    def warm_up(self) -> None:
        self._server.start()

    def post(self, answer: _Answer, event: _Event) -> None:
        """From the server's thread."""
        self._events.append((answer, event))
        self.wake()

    def count_wait(self) -> None:
        self._waits.inc()

    # -- orders ----------------------------------------------------------------------------------------

    def open(self, slot: Slot, config: bytes) -> None:
        if len(self._places) >= self._slots:
            raise StageRefused("resource_exhausted", "there is no free slot")
        try:
            wanted = heads.decode_config(config)
        except msgspec.MsgspecError as error:
            raise StageRefused("invalid_duplex_runtime_config", f"qwen3-omni: {error}") from None
        self._places[slot] = _Place(slot, wanted, Talk(self._options))

    def cancel(self, slot: Slot, epoch: int) -> None:
        place = self._places[slot]
        place.talk.forget_unended()
        answer = place.answer
        if answer is None:
            return
        self._stop(place)
        self._results["cancelled"].inc()
        heard_ms = answer.heard_ms
        self._kept(place.talk.said("" if heard_ms is None else heard_of(answer.text, answer.ms, heard_ms)))

    def control(self, slot: Slot, kind: str, body: bytes) -> None:
        place = self._places[slot]
        if kind != heads.HEARD:
            place.config = heads.decode_config(body)
        elif place.answer is not None:
            place.answer.heard_ms = heads.decode_heard(body)
        elif place.last is not None:
            place.talk.cut(heard_of(place.last.text, place.last.ms, heads.decode_heard(body)))

    def close(self, slot: Slot) -> None:
        place = self._places.pop(slot, None)
        if place is not None and place.answer is not None:
            self._stop(place)
            self._results["cancelled"].inc()

    # -- units -----------------------------------------------------------------------------------------

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        return [self._append(unit) for unit in batch]

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        """Sound is only gathered here; a request is made in another thread."""
        return False

    def _append(self, unit: StageUnit) -> Emission:
        place, head = self._places[unit.slot], heads.decode_head(unit.head)
        if head.item is not None:
            self._kept(place.talk.item(head.item))
        elif unit.frames and not unit.replay:
            self._kept(place.talk.hear(_as_pcm16(unit.frames[0])))
        if head.flags & heads.FINAL:
            self._kept(place.talk.end_turn())
        if head.flags & heads.ASK and not unit.replay:
            self._ask(place, unit.turn_id)
        return Emission(unit.slot, SESSION, unit.unit, unit.turn_id, _NOTHING)

    def _ask(self, place: _Place, turn_id: int) -> None:
        if place.answer is not None:  # the session asks for one at a time
            self._stop(place)
            self._results["cancelled"].inc()
        answer = place.answer = _Answer(self, place, turn_id)
        answer.future = self._server.ask(place.config, place.talk.turns(), place.talk.results(), answer)

    def _stop(self, place: _Place) -> None:
        answer, place.answer = place.answer, None
        if answer is not None:
            answer.future.cancel()

    # -- results ---------------------------------------------------------------------------------------

    def read(self) -> Sequence[Emission]:
        emissions: list[Emission] = []
        while self._events:
            answer, event = self._events.popleft()
            if answer.place.answer is not answer:
                continue  # it was cancelled since
            if isinstance(event, Piece):
                emissions.append(self._piece(answer, event))
            elif isinstance(event, AnswerStream):
                emissions += self._ended(answer, event)
            else:
                emissions.append(self._failed(answer, event))
        return emissions

    def _piece(self, answer: _Answer, piece: Piece) -> Emission:
        answer.taken += 1
        if answer.waiting() == MAX_WAITING // 2:
            self._server.loop.call_soon_threadsafe(answer.make_room)
        answer.text += piece.text
        if piece.pcm:
            answer.ms += len(piece.pcm) / 2 / piece.rate_hz * 1000
        return self._told(answer, ModelOutput(text=piece.text, audio_rate_hz=piece.rate_hz), piece.pcm)

    def _ended(self, answer: _Answer, stream: AnswerStream) -> list[Emission]:
        calls = tuple(
            call
            if call.call_id or not call.name
            else msgspec.structs.replace(call, call_id=f"call_{answer.turn_id}_{n}")
            for n, call in enumerate(stream.calls())
        )
        if any(not call.name for call in calls):
            unread = self._told(answer, ModelOutput(tool_calls=calls, usage=stream.usage))
            error = StreamError("malformed_function_call", "the model called a function in a way nobody can carry out")
            return [unread, self._failed(answer, error)]
        if not (answer.text or answer.ms or calls):
            return [self._failed(answer, StreamError("empty_answer", "the model said nothing"))]
        place = answer.place
        place.answer, place.last = None, answer
        self._results["completed"].inc()
        made = tuple(Called(call.call_id, call.name, call.arguments) for call in calls)
        self._kept(place.talk.said(answer.text, made))
        return [self._told(answer, ModelOutput(tool_calls=calls, end_of_turn=True, usage=stream.usage))]

    def _failed(self, answer: _Answer, error: StreamError) -> Emission:
        answer.place.answer = None
        self._results["failed"].inc()
        return self._told(answer, ModelOutput(error_code=error.code, error=error.message))

    def _told(self, answer: _Answer, output: ModelOutput, pcm: bytes = b"") -> Emission:
        frames = (pcm,) if pcm else ()
        return Emission(answer.place.slot, SESSION, NO_UNIT, answer.turn_id, encode_output(output), frames)

    def _kept(self, whole: bool) -> None:
        if not whole:
            self._cuts.inc()

    def usage(self) -> EngineUsage:
        held = sum(place.talk.size_bytes for place in self._places.values())
        return EngineUsage(len(self._places), self._slots, state_bytes=held)

    def shut_down(self) -> None:
        for place in self._places.values():
            self._stop(place)
        self._server.close()


def _as_pcm16(pcm: bytes) -> bytes:
    samples = np.frombuffer(pcm, "<f4")
    sound: bytes = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
    return sound
