"""Conversation items and their content parts, as the wire shows them. Frozen: an event holds a snapshot."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from duologue.protocol.realtime.errors import error_type_of
from duologue.protocol.realtime.json_types import JsonObject


class TextMark(msgspec.Struct, frozen=True, gc=False):
    """So many characters have been said when so many milliseconds have sounded; both cumulative."""

    text_chars: int
    audio_end_ms: int


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One part. Only the keys of its type are set; audio itself is never in an item.

    Types: input_text, input_audio, input_image, output_text, output_audio; `audio` and `text` in the
    part events of a response.
    """

    type: str
    text: str | UnsetType = UNSET
    transcript: str | None | UnsetType = UNSET
    image_url: str | UnsetType = UNSET
    is_speech: bool | UnsetType = UNSET
    audio_duration_ms: int | UnsetType = UNSET
    audio_text_marks: tuple[TextMark, ...] | UnsetType = UNSET


class Item(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message (role, content), a function_call (call_id, name, arguments) or its output.

    `id` is empty only in an item that a client created without one: the core names it.
    """

    id: str
    object: str = "realtime.item"
    type: str = "message"
    role: str | UnsetType = UNSET
    status: str = "completed"
    content: tuple[ContentPart, ...] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    output: str | UnsetType = UNSET

    @property
    def text(self) -> str:
        """All that is written or said in it."""
        parts = () if self.content is UNSET else self.content
        return "".join((part.text or "") + (part.transcript or "") for part in parts)

    def with_status(self, status: str) -> Item:
        return msgspec.structs.replace(self, status=status)


class ConversationEntry(msgspec.Struct, frozen=True, gc=False):
    """One item of `items` in a `session.resumed` that follows a gap."""

    id: str
    role: str
    text: str


class StatusError(msgspec.Struct, frozen=True, gc=False):
    """What a response failed of: the class and the code of the error table."""

    type: str
    code: str


class StatusDetails(msgspec.Struct, frozen=True, gc=False):
    """How a response ended: `type` repeats its status. `error`: of a failed one."""

    type: str
    reason: str
    error: StatusError | UnsetType = UNSET

    @classmethod
    def of(cls, status: str, reason: str) -> StatusDetails:
        failed = status == "failed"
        return cls(status, reason, StatusError(error_type_of(reason), reason) if failed else UNSET)


class Response(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The response object of `response.created` and `response.done`."""

    id: str
    object: str = "realtime.response"
    status: str = "in_progress"
    status_details: StatusDetails | None = None
    output: tuple[Item, ...] = ()
    modalities: tuple[str, ...] | UnsetType = UNSET
    metadata: JsonObject | None = None
    usage: JsonObject | UnsetType = UNSET
    """Token counts, where the model tells them."""


def message_item(item_id: str, role: str, *parts: ContentPart, status: str = "completed") -> Item:
    return Item(id=item_id, role=role, status=status, content=parts)


def function_call_item(item_id: str, *, call_id: str, name: str, arguments: str, status: str = "completed") -> Item:
    return Item(id=item_id, type="function_call", status=status, call_id=call_id, name=name, arguments=arguments)


def assistant_item(
    response_id: str,
    *,
    status: str,
    transcript: str | None = None,
    text: str | None = None,
    audio_duration_ms: int | None = None,
    marks: tuple[TextMark, ...] = (),
) -> Item:
    """The item of a spoken or written response; parts appear only for what was produced (not None)."""
    parts: list[ContentPart] = []
    if transcript is not None:
        parts.append(
            ContentPart(
                type="output_audio",
                transcript=transcript,
                audio_duration_ms=UNSET if audio_duration_ms is None else audio_duration_ms,
                audio_text_marks=marks or UNSET,
            )
        )
    if text is not None:
        parts.append(ContentPart(type="output_text", text=text))
    return Item(id=f"item_{response_id}", role="assistant", status=status, content=tuple(parts))
