"""Tier 2 and 3: what the duplex dialect says beyond the OpenAI Realtime API.

Rule 1. A Tier 2 event subclasses its Tier 1 twin, keeps its wire type and only adds keys.
Rule 2. A Tier 3 event has no twin: in the OpenAI dialects it becomes something else or vanishes.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from duologue.protocol.realtime import events as tier1
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.events import ErrorDetail, ErrorEvent, RealtimeEvent, Scoped
from duologue.protocol.realtime.items import ConversationEntry, TextMark
from duologue.protocol.realtime.json_types import JsonObject

# -- Tier 2 -----------------------------------------------------------------------------------------------


class SessionCreated(tier1.SessionCreated, frozen=True, kw_only=True, tag="session.created"):
    """Never numbered. The last three keys are set when it answers a resume by query."""

    attachment_generation: int | UnsetType = UNSET
    resume_token: str | UnsetType = UNSET
    last_client_event_id: str | None | UnsetType = UNSET
    input_audio_end_ms: int | UnsetType = UNSET
    items: tuple[ConversationEntry, ...] | UnsetType = UNSET


class InputCommitted(tier1.InputCommitted, frozen=True, kw_only=True, tag="input_audio_buffer.committed"):
    event: JsonObject


class ItemDeleted(tier1.ItemDeleted, frozen=True, kw_only=True, tag="conversation.item.deleted"):
    event: JsonObject


class ItemTruncated(tier1.ItemTruncated, frozen=True, kw_only=True, tag="conversation.item.truncated"):
    event: JsonObject


class ResponseCreated(tier1.ResponseCreated, frozen=True, kw_only=True, tag="response.created"):
    response_id: str


class ResponseDone(tier1.ResponseDone, frozen=True, kw_only=True, tag="response.done"):
    response_id: str


class Playback(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The cursors of one response, in ms of its audio; each is at most the one before it."""

    generated_ms: int = 0
    sent_ms: int = 0
    played_ms: int = 0
    committed_ms: int = 0


class AudioMetadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an audio delta tells beside its samples; `audio_duration_ms` and the marks are cumulative."""

    session_id: str
    epoch: int
    model_speak: bool = True
    end_of_turn: bool = False
    playback: Playback
    vllm_omni: JsonObject | UnsetType = UNSET
    audio_duration_ms: int | UnsetType = UNSET
    audio_text_marks: tuple[TextMark, ...] | UnsetType = UNSET


class AudioDelta(tier1.AudioDelta, frozen=True, kw_only=True, tag="response.output_audio.delta"):
    """`delta` is audio of `format`; msgspec writes it as base64."""

    format: str = "pcm16"
    sample_rate_hz: int | UnsetType = UNSET
    metadata: AudioMetadata | UnsetType = UNSET


class TranscriptDelta(tier1.TranscriptDelta, frozen=True, kw_only=True, tag="response.output_audio_transcript.delta"):
    metadata: AudioMetadata | UnsetType = UNSET


# -- Tier 3: session --------------------------------------------------------------------------------------


class SessionResumed(RealtimeEvent, frozen=True, kw_only=True, tag="session.resumed"):
    """Never numbered. `items` only after a gap; the two keys before it are what a checkpoint covers."""

    session_id: str
    session: JsonObject
    attachment_generation: int
    resume_token: str
    last_client_event_id: str | None | UnsetType = UNSET
    input_audio_end_ms: int | UnsetType = UNSET
    items: tuple[ConversationEntry, ...] | UnsetType = UNSET


class SessionReplaced(RealtimeEvent, frozen=True, kw_only=True, tag="session.replaced"):
    session_id: str
    attachment_generation: int


class SessionResyncRequired(RealtimeEvent, frozen=True, kw_only=True, tag="session.resync_required"):
    session_id: str
    reason: str = "journal_gap"
    head_seq: int


class SessionHeartbeatAck(RealtimeEvent, frozen=True, kw_only=True, tag="session.heartbeat_ack"):
    session_id: str


class SessionClosed(RealtimeEvent, frozen=True, kw_only=True, tag="session.closed"):
    session_id: str
    reason: str
    event: JsonObject


class SessionExpired(RealtimeEvent, frozen=True, kw_only=True, tag="session.expired"):
    """reason: idle_ttl_expired, disconnect_grace_expired, max_session_expired, request_cleanup."""

    session_id: str
    reason: str


class SessionExpiring(RealtimeEvent, frozen=True, kw_only=True, tag="session.expiring"):
    session_id: str
    expires_at: int
    time_left_ms: int


class SessionGoingAway(RealtimeEvent, frozen=True, kw_only=True, tag="session.going_away"):
    session_id: str
    time_left_ms: int


# -- Tier 3: turns ----------------------------------------------------------------------------------------


class SpeakMetadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    session_id: str
    epoch: int
    model_speak: bool = True
    vllm_omni: JsonObject | UnsetType = UNSET


class ResponseSpeak(Scoped, frozen=True, kw_only=True, tag="response.speak"):
    metadata: SpeakMetadata


class ListenMetadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """reason: model_listen, silence_or_noise, buffering, continuation_limit, ..."""

    reason: str
    model_listen: bool = False
    buffering: bool | UnsetType = UNSET


class ListenResponse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    object: str = "realtime.response"
    status: str = "listening"
    metadata: ListenMetadata
    id: str | UnsetType = UNSET


class ResponseListen(RealtimeEvent, frozen=True, kw_only=True, tag="response.listen"):
    """`response_id` (and `response.id`) is set when it ends a response that was open."""

    session_id: str
    epoch: int
    response: ListenResponse
    response_id: str | UnsetType = UNSET


class OverlapDecision(RealtimeEvent, frozen=True, kw_only=True, tag="overlap.decision"):
    """action: barge_in, listen, drop. `metadata` repeats them with what the decision rests on."""

    session_id: str
    epoch: int
    policy: str
    action: str
    reason: str
    metadata: JsonObject


class PlaybackState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Inside `playback.acknowledged`: the request's numbers, and the cursors after it."""

    type: str = "playback.acknowledged"
    session_id: str
    epoch: int
    item_id: str | None
    played_ms: int | float
    committed_ms: int | float
    truncate: bool = False
    playback: Playback
    history_committed: bool = False


class PlaybackAcknowledged(RealtimeEvent, frozen=True, kw_only=True, tag="playback.acknowledged"):
    event: PlaybackState


class TurnEvent(RealtimeEvent, frozen=True, kw_only=True, tag="turn.event"):
    session_id: str
    event: str
    turn_state: str
    epoch: int


class FunctionCallFallback(RealtimeEvent, frozen=True, kw_only=True, tag="duplex.function_call.done"):
    """A tool call that is not well formed, passed on raw."""

    event: JsonObject


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a client library makes of an event type that it does not know."""

    type: str
    raw: JsonObject
    event_id: str = ""
    server_event_seq: int | UnsetType = UNSET


def error_event(error: RealtimeProtocolError, event_id: str, *, head_seq: int | None = None) -> ErrorEvent:
    """The `error` event of a refusal; `event_id` is the server's own id of it."""
    return ErrorEvent(
        event_id=event_id,
        error=ErrorDetail(
            type=error.error_type,
            code=error.code,
            message=error.message,
            event_id=error.event_id,
            param=error.param,
            retryable=error.retryable,
            retry_after_ms=UNSET if error.retry_after_ms is None else error.retry_after_ms,
            head_seq=UNSET if head_seq is None else head_seq,
        ),
    )


DuplexEvent = (
    SessionCreated
    | tier1.SessionUpdated
    | SessionResumed
    | SessionReplaced
    | SessionResyncRequired
    | SessionHeartbeatAck
    | SessionClosed
    | SessionExpired
    | SessionExpiring
    | SessionGoingAway
    | tier1.SpeechStarted
    | tier1.SpeechStopped
    | InputCommitted
    | tier1.InputCleared
    | tier1.ItemAdded
    | tier1.ItemCreated
    | tier1.ItemDone
    | tier1.ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | tier1.TranscriptionCompleted
    | ResponseCreated
    | tier1.OutputItemAdded
    | tier1.ContentPartAdded
    | ResponseSpeak
    | AudioDelta
    | TranscriptDelta
    | tier1.TextDelta
    | tier1.TextDone
    | tier1.AudioDone
    | tier1.TranscriptDone
    | tier1.ContentPartDone
    | tier1.OutputItemDone
    | ResponseDone
    | tier1.RateLimitsUpdated
    | tier1.ArgumentsDelta
    | tier1.ArgumentsDone
    | ResponseListen
    | tier1.OutputCleared
    | OverlapDecision
    | PlaybackAcknowledged
    | TurnEvent
    | ErrorEvent
    | FunctionCallFallback
)
