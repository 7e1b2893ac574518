"""Tier 1: the client commands of the OpenAI Realtime API, as the core takes them.

Rule 1. A command holds what was said, checked and folded into one spelling; defaults of the session are
        not filled in here.
Rule 2. The tag is the canonical wire type, so a command travels between processes as msgpack; media travels
        beside it (`detach`, `attach`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

from duologue.protocol.realtime.formats import AudioFormat
from duologue.protocol.realtime.items import Item
from duologue.protocol.realtime.json_types import JsonObject

Frame = bytes | bytearray | memoryview


class ClientCommand(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="type"):
    """Base of all commands. `event_id` is the client's own id, echoed in errors."""

    event_id: str | None = None

    @property
    def type(self) -> str:
        """The canonical wire type."""
        return str(self.__struct_config__.tag)

    def detach(self) -> tuple[Self, tuple[bytes, ...]]:
        """The command without its media, and the media as frames of their own."""
        return self, ()

    def attach(self, frames: Sequence[Frame]) -> Self:
        """The inverse of `detach`."""
        return self


class SessionUpdate(ClientCommand, frozen=True, kw_only=True, tag="session.update"):
    """`session` is the patch as it was sent; `SessionConfig` reads it."""

    session: JsonObject


class AppendAudio(ClientCommand, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """`audio` is decoded from base64, in `format` (canonical name) at `sample_rate_hz`.

    None for either means what the session has; the core resolves it, in command order.
    """

    audio: bytes = b""
    format: str | None = None
    sample_rate_hz: int | None = None


class Commit(ClientCommand, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    pass


class ClearInput(ClientCommand, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    pass


class ItemAudio(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Decoded audio of one content part of a created item."""

    content_index: int
    audio: bytes
    format: str | None = None
    sample_rate_hz: int | None = None


class CreateItem(ClientCommand, frozen=True, kw_only=True, tag="conversation.item.create"):
    """`item.id` is empty if the client gave none. `previous_item_id` "root" is the head, None the end."""

    item: Item
    audio: tuple[ItemAudio, ...] = ()
    previous_item_id: str | None = None


class RetrieveItem(ClientCommand, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    item_id: str


class DeleteItem(ClientCommand, frozen=True, kw_only=True, tag="conversation.item.delete"):
    item_id: str


class TruncateItem(ClientCommand, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    item_id: str
    audio_end_ms: int
    content_index: int = 0


class ResponseOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The options of one `response.create`; None means as the session has it."""

    instructions: str | None = None
    voice: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    unlimited_tokens: bool = False
    tools: tuple[JsonObject, ...] | None = None
    tool_choice: str | JsonObject | None = None
    output_format: AudioFormat | None = None
    """A rate of 0 means that only the name was given."""
    speed: float | None = None
    modalities: tuple[str, ...] | None = None
    conversation: str | None = None
    metadata: JsonObject | None = None
    prompt: JsonObject | None = None
    extra_body: JsonObject | None = None

    def given(self) -> tuple[str, ...]:
        """The names of the options that are set, to be held against what a model can honour."""
        return tuple(
            name
            for name in self.__struct_fields__
            if getattr(self, name) is not None and getattr(self, name) is not False
        )


class CreateResponse(ClientCommand, frozen=True, kw_only=True, tag="response.create"):
    options: ResponseOptions = ResponseOptions()


class CancelResponse(ClientCommand, frozen=True, kw_only=True, tag="response.cancel"):
    response_id: str | None = None


class ClearOutput(ClientCommand, frozen=True, kw_only=True, tag="output_audio_buffer.clear"):
    response_id: str | None = None
