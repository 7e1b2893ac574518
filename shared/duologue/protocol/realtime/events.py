"""Tier 1: the server events of the OpenAI Realtime API, with the fields that its clients require.

Fields stand in wire order; `event_id` is given by the caller. Keys that are not set are left out.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from duologue.protocol.realtime.items import ContentPart, Item, Response
from duologue.protocol.realtime.json_types import JsonObject


class RealtimeEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """Base of all events; the tag is the wire type.

    `server_event_seq` is spliced into rendered bytes by whoever numbers them (`splice_seq`); it is set in
    an event that a client reads, and, in the OpenAI dialects, in `session.created`.
    """

    event_id: str
    server_event_seq: int | UnsetType = UNSET

    @property
    def type(self) -> str:
        """The wire type."""
        return str(self.__struct_config__.tag)

    def to_realtime(self) -> JsonObject:
        """The event as a JSON object; audio is base64."""
        told: JsonObject = msgspec.json.decode(msgspec.json.encode(self))
        return told


class Scoped(RealtimeEvent, frozen=True, kw_only=True):
    """Events that belong to one content part of a response."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0


# -- session --------------------------------------------------------------------------------------------


class SessionCreated(RealtimeEvent, frozen=True, kw_only=True, tag="session.created"):
    session: JsonObject


class SessionUpdated(RealtimeEvent, frozen=True, kw_only=True, tag="session.updated"):
    session: JsonObject


# -- input ----------------------------------------------------------------------------------------------


class SpeechStarted(RealtimeEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_started"):
    audio_start_ms: int
    item_id: str


class SpeechStopped(RealtimeEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    audio_end_ms: int
    item_id: str


class InputCommitted(RealtimeEvent, frozen=True, kw_only=True, tag="input_audio_buffer.committed"):
    previous_item_id: str | None
    item_id: str


class InputCleared(RealtimeEvent, frozen=True, kw_only=True, tag="input_audio_buffer.cleared"):
    pass


class TranscriptionCompleted(
    RealtimeEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    item_id: str
    content_index: int = 0
    transcript: str
    usage: JsonObject | UnsetType = UNSET
    """`{"type": "duration", "seconds": s}`: what was recognised. The OpenAI dialect always tells it."""


# -- items ----------------------------------------------------------------------------------------------


class ItemAdded(RealtimeEvent, frozen=True, kw_only=True, tag="conversation.item.added"):
    previous_item_id: str | None
    item: Item


class ItemCreated(RealtimeEvent, frozen=True, kw_only=True, tag="conversation.item.created"):
    """The beta twin of `ItemAdded`; both are sent in the duplex dialect."""

    previous_item_id: str | None
    item: Item


class ItemDone(RealtimeEvent, frozen=True, kw_only=True, tag="conversation.item.done"):
    previous_item_id: str | None
    item: Item


class ItemRetrieved(RealtimeEvent, frozen=True, kw_only=True, tag="conversation.item.retrieved"):
    item: Item


class ItemDeleted(RealtimeEvent, frozen=True, kw_only=True, tag="conversation.item.deleted"):
    item_id: str


class ItemTruncated(RealtimeEvent, frozen=True, kw_only=True, tag="conversation.item.truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int


# -- responses ------------------------------------------------------------------------------------------


class ResponseCreated(RealtimeEvent, frozen=True, kw_only=True, tag="response.created"):
    response: Response


class OutputItemAdded(RealtimeEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    response_id: str
    output_index: int = 0
    item: Item


class ContentPartAdded(Scoped, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: ContentPart


class AudioDelta(Scoped, frozen=True, kw_only=True, tag="response.output_audio.delta"):
    delta: bytes


class TranscriptDelta(Scoped, frozen=True, kw_only=True, tag="response.output_audio_transcript.delta"):
    delta: str


class TextDelta(Scoped, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str


class TextDone(Scoped, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str


class AudioDone(Scoped, frozen=True, kw_only=True, tag="response.output_audio.done"):
    pass


class TranscriptDone(Scoped, frozen=True, kw_only=True, tag="response.output_audio_transcript.done"):
    transcript: str


class ContentPartDone(Scoped, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: ContentPart


class OutputItemDone(RealtimeEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    response_id: str
    output_index: int = 0
    item: Item


class ResponseDone(RealtimeEvent, frozen=True, kw_only=True, tag="response.done"):
    response: Response


class RateLimitsUpdated(RealtimeEvent, frozen=True, kw_only=True, tag="rate_limits.updated"):
    rate_limits: tuple[JsonObject, ...] = ()


class ArgumentsDelta(RealtimeEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    response_id: str
    item_id: str
    output_index: int = 0
    call_id: str
    delta: str


class ArgumentsDone(RealtimeEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    response_id: str
    item_id: str
    output_index: int = 0
    call_id: str
    name: str
    arguments: str


class OutputCleared(RealtimeEvent, frozen=True, kw_only=True, tag="output_audio_buffer.cleared"):
    response_id: str | None


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The `error` object. `event_id` is the client's own, if the error answers one of its events."""

    type: str
    code: str
    message: str
    event_id: str | None = None
    param: str | None = None
    retryable: bool = False
    retry_after_ms: int | UnsetType = UNSET
    head_seq: int | UnsetType = UNSET


class ErrorEvent(RealtimeEvent, frozen=True, kw_only=True, tag="error"):
    error: ErrorDetail
