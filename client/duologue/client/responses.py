"""One answer of the model, gathered from its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from msgspec import UNSET

from duologue.client.events import Event
from duologue.protocol.duplex import (
    AudioDelta,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    TextDelta,
    TranscriptDelta,
)

#: Audio deltas that a handle keeps for a reader that does not keep up; beyond it the oldest are dropped.
MAX_CHUNKS = 4096


class ResponseHandle:
    """Announced at its first output, or at its end if it had none."""

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        self.decision: Literal["speak", "listen"] = "speak"
        self.transcript = ""
        self.text = ""
        self.played_ms = 0.0
        self.audio_ms = 0.0
        """Length of the audio that has arrived."""
        self.created_event: ResponseCreated | None = None
        self.done_event: ResponseDone | None = None
        self.dropped_chunks = 0
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._finished = asyncio.Event()

    @property
    def finished(self) -> bool:
        return self._finished.is_set()

    @property
    def status(self) -> str:
        """`in_progress`, `completed`, `cancelled` or `failed`."""
        if self.done_event is None:
            return "completed" if self.finished else "in_progress"
        return self.done_event.response.status

    @property
    def item_id(self) -> str:
        return f"item_{self.response_id}"

    async def audio(self) -> AsyncIterator[bytes]:
        """The audio in the session's output format, as it arrives; ends with the response."""
        while (chunk := await self._chunks.get()) is not None:
            yield chunk

    async def wait(self) -> ResponseHandle:
        """Until it has ended; the handle itself."""
        await self._finished.wait()
        return self

    # -- fed by the client ----------------------------------------------------------------------------

    def add_audio(self, event: AudioDelta) -> None:
        if self._chunks.qsize() >= MAX_CHUNKS:
            self._chunks.get_nowait()
            self.dropped_chunks += 1
        self._chunks.put_nowait(event.delta)
        if event.metadata is not UNSET:
            self.audio_ms = float(event.metadata.playback.generated_ms)

    def finish(self, done: ResponseDone | None) -> None:
        self.done_event = done or self.done_event
        if not self.finished:
            self._chunks.put_nowait(None)
            self._finished.set()


class ResponseBook:
    """Sorts events into handles. `feed` answers the handle that is new with this event, if any."""

    def __init__(self) -> None:
        self.open: dict[str, ResponseHandle] = {}
        self._announced: set[str] = set()

    def feed(self, event: Event) -> ResponseHandle | None:
        match event:
            case ResponseCreated():
                self._handle(event.response_id).created_event = event
            case AudioDelta():
                handle = self._handle(event.response_id)
                handle.add_audio(event)
                return self._announce(handle)
            case TranscriptDelta():
                handle = self._handle(event.response_id)
                handle.transcript += event.delta
                return self._announce(handle)
            case TextDelta():
                handle = self._handle(event.response_id)
                handle.text += event.delta
                return self._announce(handle)
            case ResponseListen():
                return self._listen("" if event.response_id is UNSET else event.response_id)
            case ResponseDone():
                handle = self._handle(event.response_id)
                handle.finish(event)
                del self.open[event.response_id]
                new = self._announce(handle)
                self._announced.discard(event.response_id)
                return new
        return None

    def _handle(self, response_id: str) -> ResponseHandle:
        return self.open.setdefault(response_id, ResponseHandle(response_id))

    def _listen(self, response_id: str) -> ResponseHandle | None:
        if response_id in self.open:
            self.open[response_id].decision = "listen"
            return self._announce(self.open[response_id])
        handle = ResponseHandle(response_id)
        handle.decision = "listen"
        handle.finish(None)
        return handle

    def _announce(self, handle: ResponseHandle) -> ResponseHandle | None:
        if handle.response_id in self._announced:
            return None
        self._announced.add(handle.response_id)
        return handle

    def fail_all(self) -> None:
        """Nothing more is known of what is open: the session is over, or its events were lost."""
        for handle in self.open.values():
            handle.finish(None)
        self.open.clear()
        self._announced.clear()
