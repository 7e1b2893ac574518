"""One method for each command of a session, typed: what `DuplexSessionHandle.submit` takes, with its fields named.

Every method answers the `event_id` of what it sent: an `error` that answers it carries the same id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from duologue.protocol.duplex import (
    AckPlayback,
    AppendAudio,
    AppendText,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearInput,
    ClearOutput,
    Commit,
    CreateItem,
    CreateResponse,
    DeleteItem,
    DuplexCommand,
    Item,
    JsonObject,
    ResponseOptions,
    RetrieveItem,
    SessionClose,
    SessionHeartbeat,
    SessionUpdate,
    TruncateItem,
    TurnSignal,
)


class HandleCommands(ABC):
    """See the module."""

    @abstractmethod
    async def submit(self, command: DuplexCommand) -> str:
        """Give one command to the session; an `event_id` is given to it if it has none. Waits while the session
        takes no more input. Raises DuplexSessionClosedError when it is over or detached."""

    async def append_audio(
        self,
        audio: bytes,
        *,
        format: str | None = None,
        sample_rate_hz: int | None = None,
        video_frames: Sequence[bytes] = (),
        is_speech: bool | None = None,
    ) -> str:
        """Append audio, in the session's input format unless told otherwise, and JPEG or PNG pictures."""
        return await self.submit(
            AppendAudio(
                audio=audio,
                format=format,
                sample_rate_hz=sample_rate_hz,
                video_frames=tuple(video_frames),
                video_bytes=sum(-(-len(frame) // 3) * 4 for frame in video_frames),
                is_speech=is_speech,
            )
        )

    async def append_text(self, text: str) -> str:
        """Streamed text, for models that take it."""
        return await self.submit(AppendText(text=text))

    async def commit(self, *, create_response: bool | None = None) -> str:
        """The user's turn is over; `create_response` says whether it is to be answered."""
        return await self.submit(Commit(response_create=create_response))

    async def clear_input(self) -> str:
        return await self.submit(ClearInput())

    async def cancel_input(self) -> str:
        return await self.submit(CancelInput())

    async def create_response(self, options: ResponseOptions | None = None) -> str:
        return await self.submit(CreateResponse(options=options or ResponseOptions()))

    async def cancel_response(self, response_id: str | None = None) -> str:
        return await self.submit(CancelResponse(response_id=response_id))

    async def barge_in(self) -> str:
        return await self.submit(BargeIn())

    async def clear_output(self, response_id: str | None = None) -> str:
        return await self.submit(ClearOutput(response_id=response_id))

    async def ack_playback(
        self,
        played_ms: float,
        *,
        response_id: str | None = None,
        item_id: str | None = None,
        committed_ms: float | None = None,
        truncate: bool = False,
    ) -> str:
        """Tell how much of a response has been heard. Only that enters the model's memory."""
        return await self.submit(
            AckPlayback(
                played_ms=played_ms,
                committed_ms=committed_ms,
                response_id=response_id,
                item_id=item_id,
                truncate=truncate,
            )
        )

    async def create_item(self, item: Item, *, previous_item_id: str | None = None) -> str:
        """Add an item (`message_item` makes one); `previous_item_id` "root" is the head, None the end."""
        return await self.submit(CreateItem(item=item, previous_item_id=previous_item_id))

    async def retrieve_item(self, item_id: str) -> str:
        return await self.submit(RetrieveItem(item_id=item_id))

    async def delete_item(self, item_id: str) -> str:
        return await self.submit(DeleteItem(item_id=item_id))

    async def truncate_item(self, item_id: str, audio_end_ms: int, *, content_index: int = 0) -> str:
        return await self.submit(TruncateItem(item_id=item_id, audio_end_ms=audio_end_ms, content_index=content_index))

    async def update_session(self, session: JsonObject) -> str:
        """Change fields of the session object; `session.updated` shows the effective one."""
        return await self.submit(SessionUpdate(session=session))

    async def signal_turn(self, event: str, payload: dict[str, Any] | None = None) -> str:
        return await self.submit(TurnSignal(event=event, payload=payload or {}))

    async def heartbeat(self) -> str:
        return await self.submit(SessionHeartbeat())

    async def close(self, reason: str = "client_close") -> str:
        """End the session: `session.closed` is its last event."""
        return await self.submit(SessionClose(reason=reason))
