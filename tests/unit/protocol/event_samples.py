"""One event of every class, with all its optional keys, and the keys that the contract lists for it."""

from __future__ import annotations

from typing import Any

from duologue.protocol import duplex as p

SID = "duplex-" + "0" * 32
RID = f"resp-{SID}-0-0000abcd"
ITEM = f"item_{RID}"
SCOPE: dict[str, Any] = {"response_id": RID, "item_id": ITEM, "output_index": 0, "content_index": 0}
SCOPE_KEYS = ["response_id", "item_id", "output_index", "content_index"]

MARKS = (p.TextMark(5, 80), p.TextMark(11, 160))
USER = p.message_item("item_user", "user", p.ContentPart(type="input_audio", transcript="", is_speech=False))
SPOKEN = p.assistant_item(RID, status="completed", transcript="hello there", audio_duration_ms=160, marks=MARKS)
CALL = p.function_call_item("item_call", call_id="call_1", name="look_up", arguments="{}")
PLAYBACK = p.Playback(generated_ms=160, sent_ms=80, played_ms=40, committed_ms=20)
AUDIO = p.AudioMetadata(
    session_id=SID,
    epoch=0,
    playback=PLAYBACK,
    vllm_omni={"model_turn_id": 0},
    audio_duration_ms=160,
    audio_text_marks=MARKS,
)
CREATED = p.Response(
    id=RID,
    modalities=("text", "audio"),
    metadata={"client_event_id": "r1", "duplex_event": {"type": "response.created"}},
)


def ended(status: str, reason: str, *items: p.Item, **more: Any) -> p.Response:
    return p.Response(
        id=RID,
        status=status,
        status_details=p.StatusDetails(status, reason),
        output=items,
        metadata=None,
        **more,
    )


LISTEN = p.ListenResponse(metadata=p.ListenMetadata(reason="model_listen", model_listen=True, buffering=False), id=RID)
SESSION = p.session_object(
    p.SessionConfig.provisional(p.Dialect.openai, model="loopback"),
    p.SessionRuntimeView(id=SID, expires_at=1_900_000_000),
    p.Dialect.openai,
)

# (event without event_id, the keys after type and event_id, in wire order)
_TABLE: list[tuple[type[Any], dict[str, Any]]] = [
    (
        p.SessionCreated,
        {
            "session": SESSION,
            "attachment_generation": 1,
            "resume_token": "t" * 43,
            "last_client_event_id": "evt_9",
            "input_audio_end_ms": 800,
            "items": (p.ConversationEntry("m1", "user", "remember me"),),
        },
    ),
    (p.SessionUpdated, {"session": SESSION}),
    (
        p.SessionResumed,
        {
            "session_id": SID,
            "session": SESSION,
            "attachment_generation": 2,
            "resume_token": "t" * 43,
            "last_client_event_id": None,
            "input_audio_end_ms": 0,
            "items": (),
        },
    ),
    (p.SessionReplaced, {"session_id": SID, "attachment_generation": 1}),
    (p.SessionResyncRequired, {"session_id": SID, "reason": "journal_gap", "head_seq": 7}),
    (p.SessionHeartbeatAck, {"session_id": SID}),
    (p.SessionClosed, {"session_id": SID, "reason": "goodbye", "event": {}}),
    (p.SessionExpired, {"session_id": SID, "reason": "idle_ttl_expired"}),
    (p.SessionExpiring, {"session_id": SID, "expires_at": 1_900_000_000, "time_left_ms": 60_000}),
    (p.SessionGoingAway, {"session_id": SID, "time_left_ms": 30_000}),
    (p.SpeechStarted, {"audio_start_ms": 40, "item_id": "item_user"}),
    (p.SpeechStopped, {"audio_end_ms": 940, "item_id": "item_user"}),
    (
        p.InputCommitted,
        {
            "previous_item_id": None,
            "item_id": "item_user",
            "event": {"type": "input.committed", "turn_id": 0},
        },
    ),
    (p.InputCleared, {}),
    (p.ItemAdded, {"previous_item_id": None, "item": USER}),
    (p.ItemCreated, {"previous_item_id": "item_0", "item": CALL}),
    (p.ItemDone, {"previous_item_id": "item_0", "item": SPOKEN}),
    (p.ItemRetrieved, {"item": SPOKEN}),
    (p.ItemDeleted, {"item_id": "m1", "event": {"type": "conversation.item.deleted", "deleted": True}}),
    (
        p.ItemTruncated,
        {"item_id": ITEM, "content_index": 0, "audio_end_ms": 80, "event": {"truncated": True}},
    ),
    (
        p.TranscriptionCompleted,
        {
            "item_id": "item_user",
            "content_index": 0,
            "transcript": "hi",
            "usage": {"type": "duration", "seconds": 0.9},
        },
    ),
    (p.ResponseCreated, {"response": CREATED, "response_id": RID}),
    (p.OutputItemAdded, {"response_id": RID, "output_index": 0, "item": CALL}),
    (p.ContentPartAdded, {**SCOPE, "part": p.ContentPart(type="audio", transcript="")}),
    (
        p.ResponseSpeak,
        {**SCOPE, "metadata": p.SpeakMetadata(session_id=SID, epoch=0, vllm_omni={"runtime_impl": "x"})},
    ),
    (
        p.AudioDelta,
        {**SCOPE, "delta": b"\0\1" * 99, "format": "pcm16", "sample_rate_hz": 24_000, "metadata": AUDIO},
    ),
    (p.TranscriptDelta, {**SCOPE, "delta": "hellö", "metadata": AUDIO}),
    (p.TextDelta, {**SCOPE, "delta": "hello"}),
    (p.TextDone, {**SCOPE, "text": "hello there"}),
    (p.AudioDone, {**SCOPE}),
    (p.TranscriptDone, {**SCOPE, "transcript": "hello there"}),
    (p.ContentPartDone, {**SCOPE, "part": p.ContentPart(type="text", text="hello")}),
    (p.OutputItemDone, {"response_id": RID, "output_index": 0, "item": SPOKEN}),
    (
        p.ResponseDone,
        {
            "response": ended("completed", "stop", SPOKEN, usage={"total_tokens": 3}),
            "response_id": RID,
        },
    ),
    (p.RateLimitsUpdated, {"rate_limits": ()}),
    (
        p.ArgumentsDelta,
        {"response_id": RID, "item_id": "item_call", "output_index": 0, "call_id": "call_1", "delta": "{}"},
    ),
    (
        p.ArgumentsDone,
        {
            "response_id": RID,
            "item_id": "item_call",
            "output_index": 0,
            "call_id": "call_1",
            "name": "look_up",
            "arguments": "{}",
        },
    ),
    (p.ResponseListen, {"session_id": SID, "epoch": 0, "response": LISTEN, "response_id": RID}),
    (p.OutputCleared, {"response_id": RID}),
    (
        p.OverlapDecision,
        {
            "session_id": SID,
            "epoch": 0,
            "policy": "listen_only",
            "action": "listen",
            "reason": "policy_listen_only",
            "metadata": {"duration_ms": 80},
        },
    ),
    (
        p.PlaybackAcknowledged,
        {
            "event": p.PlaybackState(
                session_id=SID, epoch=0, item_id=ITEM, played_ms=80, committed_ms=80, playback=PLAYBACK
            )
        },
    ),
    (p.TurnEvent, {"session_id": SID, "event": "user_started", "turn_state": "user_speaking", "epoch": 0}),
    (
        p.ErrorEvent,
        {
            "error": p.ErrorDetail(
                type="rate_limit_error",
                code="input_backpressure",
                message="too much",
                event_id="evt_1",
                param="audio",
                retryable=True,
                retry_after_ms=500,
                head_seq=3,
            )
        },
    ),
    (p.FunctionCallFallback, {"event": {"raw": "look_up("}}),
]

SAMPLES: list[tuple[Any, list[str]]] = [
    (kind(event_id=f"event_{number:032x}", **fields), list(fields)) for number, (kind, fields) in enumerate(_TABLE)
]
