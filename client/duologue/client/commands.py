"""One method for each command of a session, as every client of this package has them.

Every method answers the `event_id` of what it sent: an `error` that answers it carries the same id. All of them
raise what ended the session, once it is over.
"""

from __future__ import annotations

import asyncio
import base64
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from duologue.client.config import SessionConfig

Command = dict[str, Any]


class SessionCommands(ABC):
    """See the module. `config` says in which format audio is given."""

    config: SessionConfig
    _clock_ms = 0.0

    @abstractmethod
    async def send(self, command: Command) -> str:
        """Send any command of docs/protocol.md; an `event_id` is given to it if it has none."""

    async def _say(self, kind: str, **fields: Any) -> str:
        return await self.send({"type": kind, **{key: value for key, value in fields.items() if value is not None}})

    # -- input ------------------------------------------------------------------------------------------

    async def append_audio(
        self,
        pcm: bytes,
        *,
        is_speech: bool | None = None,
        video_frames: Sequence[str] | None = None,
        **hints: Any,
    ) -> str:
        """Append audio in the session's input format; `video_frames` are base64 JPEG or PNG, at most two."""
        format_ = self.config.input_audio
        duration_ms = len(pcm) / format_.bytes_per_ms
        self._clock_ms += duration_ms
        return await self._say(
            "input_audio_buffer.append",
            audio=base64.b64encode(pcm).decode(),
            format=format_.name,
            sample_rate_hz=format_.rate_hz,
            duration_ms=round(duration_ms, 3),
            audio_end_ms=round(self._clock_ms, 3),
            is_speech=is_speech,
            video_frames=[frame.rsplit(",", 1)[-1] for frame in video_frames] if video_frames else None,
            **hints,
        )

    async def stream_pcm(
        self,
        pcm: bytes,
        *,
        chunk_ms: float = 200,
        realtime: bool = True,
        is_speech: bool | None = None,
        video_frames: Sequence[str] = (),
    ) -> int:
        """Append in chunks, at the pace of speech unless told otherwise. Returns the number of appends.

        Frame k of `video_frames` goes with the append that passes second k + 1; the last one is repeated.
        """
        per_ms = self.config.input_audio.bytes_per_ms
        size = max(1, round(chunk_ms * per_ms / 4)) * 4
        start, count, seconds = time.monotonic(), 0, 0
        for offset in range(0, len(pcm), size):
            chunk = pcm[offset : offset + size]
            passed = int((offset + len(chunk)) / per_ms / 1000)
            frame = (
                [video_frames[min(passed - 1, len(video_frames) - 1)]] if passed > seconds and video_frames else None
            )
            seconds = passed
            await self.append_audio(chunk, is_speech=is_speech, video_frames=frame)
            count += 1
            if realtime:
                await asyncio.sleep(max(0.0, start + (offset + size) / per_ms / 1000 - time.monotonic()))
        return count

    async def commit(self, *, final: bool = True, create_response: bool | None = None) -> str:
        """The user's turn is over; `create_response` says whether it is to be answered."""
        return await self._say("input_audio_buffer.commit", final=final, response_create=create_response)

    async def clear_input(self) -> str:
        """Forget the audio that is not committed."""
        return await self._say("input_audio_buffer.clear")

    async def cancel_input(self) -> str:
        """Forget the audio that is not committed, and what was sent before this and still waits."""
        return await self._say("input.cancel")

    # -- answers ----------------------------------------------------------------------------------------

    async def create_response(self, **options: Any) -> str:
        """Ask for an answer; `options` are those of `response.create`."""
        return await self._say("response.create", response=options or None)

    async def cancel_response(self, response_id: str | None = None) -> str:
        """Stop the answer that is being made."""
        return await self._say("response.cancel", response_id=response_id)

    async def barge_in(self) -> str:
        """The user speaks over the answer: it stops, here and in the speaker."""
        return await self._say("barge_in")

    async def clear_output(self, response_id: str | None = None) -> str:
        """Nothing more of the answer is to be heard."""
        return await self._say("output_audio_buffer.clear", response_id=response_id)

    async def ack_playback(
        self,
        played_ms: float,
        *,
        response_id: str | None = None,
        item_id: str | None = None,
        committed_ms: float | None = None,
        truncate: bool | None = None,
    ) -> str:
        """Tell how much of a response has been heard. Only that enters the model's memory."""
        return await self._say(
            "playback.ack",
            played_ms=played_ms,
            response_id=response_id,
            item_id=item_id,
            committed_ms=committed_ms,
            truncate=truncate,
        )

    # -- conversation -----------------------------------------------------------------------------------

    async def send_text(self, text: str) -> str:
        """A typed user message; `create_response` asks for the answer."""
        content = [{"type": "input_text", "text": text}]
        return await self.create_item({"type": "message", "role": "user", "content": content})

    async def send_function_output(self, call_id: str, output: str) -> str:
        """The result of a function call of the model."""
        return await self.create_item({"type": "function_call_output", "call_id": call_id, "output": output})

    async def create_item(self, item: dict[str, Any], *, previous_item_id: str | None = None) -> str:
        """Add an item; `previous_item_id` "root" is the head of the conversation, None its end."""
        return await self._say("conversation.item.create", item=item, previous_item_id=previous_item_id)

    async def retrieve_item(self, item_id: str) -> str:
        """Ask for an item as it is kept: `conversation.item.retrieved`."""
        return await self._say("conversation.item.retrieve", item_id=item_id)

    async def delete_item(self, item_id: str) -> str:
        """Forget an item."""
        return await self._say("conversation.item.delete", item_id=item_id)

    async def truncate_item(self, item_id: str, audio_end_ms: int, *, content_index: int = 0) -> str:
        """Of a spoken item only this much was heard."""
        return await self._say(
            "conversation.item.truncate", item_id=item_id, content_index=content_index, audio_end_ms=audio_end_ms
        )

    # -- session ----------------------------------------------------------------------------------------

    async def update_session(self, **fields: Any) -> str:
        """Change fields of the session object; `session.updated` shows the effective one."""
        return await self.send({"type": "session.update", "session": fields})

    async def signal_turn(self, event: str, payload: dict[str, Any] | None = None) -> str:
        """A turn signal of the application: `turn.signal`."""
        return await self._say("turn.signal", event=event, payload=payload)

    async def heartbeat(self) -> str:
        """Say that this client lives; it is said by itself now and then."""
        return await self._say("session.heartbeat")
