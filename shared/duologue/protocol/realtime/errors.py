"""The one error table of the wire: every code, its class, its gist, and its name in the OpenAI dialects.

Rule 1. A code that is sent anywhere has a row here; `docs/protocol.md` is generated from it.
Rule 2. Nothing here knows who raises: a `RealtimeProtocolError` is what a client may be told.
"""

from __future__ import annotations

import msgspec

INVALID, SERVER, RATE = "invalid_request_error", "server_error", "rate_limit_error"


class ErrorCode(msgspec.Struct, frozen=True, gc=False):
    """One row. `retryable`: whether the same request may succeed later without a change."""

    code: str
    error_type: str
    gist: str
    retryable: bool = False
    openai: str | None = None
    """The name that stock OpenAI clients know; None: the same name in every dialect."""
    reserved: str = ""
    """Why nothing of this version sends it, though the contract has it. Empty: something does."""


class RealtimeProtocolError(Exception):
    """A refusal that is told to the client and leaves the session alive.

    `param` names the offending field, `event_id` echoes the client's own id. `undecodable` is true of
    frames that yield no command at all.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
        undecodable: bool = False,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id
        self.retryable = is_retryable(code) if retryable is None else retryable
        self.retry_after_ms = retry_after_ms
        self.undecodable = undecodable

    @property
    def error_type(self) -> str:
        return error_type_of(self.code)

    def under(self, prefix: str) -> RealtimeProtocolError:
        """The same error with its `param` moved under `prefix` ("session" makes "voice" "session.voice")."""
        self.param = prefix if self.param is None else f"{prefix}.{self.param}"
        return self


def _rows() -> list[ErrorCode]:
    i, s, r = INVALID, SERVER, RATE
    return [
        # frames
        ErrorCode("config_timeout", i, "no first message in 10 s"),
        ErrorCode("invalid_json", i, "the frame is not JSON"),
        ErrorCode("bad_event", i, "not an object, too deep, not finite, or a required field is missing or wrong"),
        ErrorCode("event_too_large", i, "the frame is over 15 MiB"),
        ErrorCode("unknown_event", i, "no such command"),
        # audio and media in
        ErrorCode("bad_audio", i, "the base64 of the audio is not strict, or a sample is not finite"),
        ErrorCode("unsupported_audio_format", i, "no such audio format in this direction"),
        ErrorCode("invalid_video_frames", i, "more than two frames, not JPEG or PNG, or not base64"),
        ErrorCode("invalid_input_modality", i, "the model does not take, or requires, audio or frames"),
        ErrorCode("invalid_image", i, "an image part is not a JPEG or PNG data URL of a user"),
        ErrorCode("unsupported", i, "the model cannot do this"),
        ErrorCode("input_backpressure", r, "too much unprocessed input of this session", True),
        # session configuration
        ErrorCode("invalid_session_config", i, "the session object of an open, or a fixed field, is wrong"),
        ErrorCode("unsupported_turn_detection", i, "unknown type or key, or a value out of range"),
        ErrorCode("invalid_duplex_runtime_config", i, "the model refuses extra_body"),
        ErrorCode("unsupported_ref_audio_path", i, "a reference voice must be sent, not named by path"),
        ErrorCode("ref_audio_required", i, "the model needs a reference voice"),
        ErrorCode("invalid_sliding_window_config", i, "the window keys contradict each other"),
        ErrorCode("sliding_window_update_unsupported", i, "the window is fixed at open"),
        ErrorCode("unsupported_nemotron_duplex_mode", i, "the model serves auto-responding sessions only"),
        ErrorCode("persona_update_unsupported", i, "the persona is fixed at open"),
        ErrorCode("voice_update_unsupported", i, "the model's voice is fixed at open"),
        ErrorCode("instructions_update_unsupported", i, "the model has heard something already"),
        ErrorCode("model_update_unsupported", i, "the model is fixed at open"),
        ErrorCode("voice_update_after_audio_unsupported", i, "the voice was heard already"),
        ErrorCode("ref_audio_update_unsupported", i, "the reference voice is fixed at open"),
        ErrorCode("session_update_aborted", i, "the update was overtaken by the end of the session"),
        ErrorCode("model_not_found", i, "no pipeline of this name"),
        # responses
        ErrorCode("unsupported_native_response_options", i, "the model cannot honour an option"),
        ErrorCode(
            "response_already_active",
            i,
            "a response is still open",
            openai="conversation_already_has_active_response",
        ),
        ErrorCode("response_not_active", i, "nothing to cancel", openai="response_cancel_not_active"),
        ErrorCode("response_create_without_input", i, "no input to answer"),
        ErrorCode("text_only_turn_unsupported", i, "the model cannot answer text alone"),
        ErrorCode("native_text_append_unsupported", i, "text is sent as an item, not streamed"),
        ErrorCode("input_audio_buffer_empty", i, "nothing to commit", openai="input_audio_buffer_commit_empty"),
        ErrorCode("commit_aborted", s, "the append before this commit failed"),
        ErrorCode("barge_in_unsupported", i, "the model cannot be interrupted"),
        # items and tools
        ErrorCode("missing_item_id", i, "the command needs item_id"),
        ErrorCode("item_not_found", i, "no such item", openai="item_retrieve_invalid_item_id"),
        ErrorCode("item_create_duplicate_item_id", i, "the id is in use in this session"),
        ErrorCode("invalid_function_call_output", i, "unknown call, output not a string, or answered already"),
        ErrorCode("late_function_call_output", i, "the call was settled as incomplete before its result came"),
        ErrorCode("stale_function_call_output", i, "the call was cancelled"),
        ErrorCode("function_response_backlog", i, "too many unread tool results", True),
        ErrorCode("nemotron_function_call_parse_error", i, "the model's tool call is no JSON"),
        # playback
        ErrorCode("playback_item_mismatch", i, "response_id and item_id disagree"),
        ErrorCode("playback_item_not_found", i, "no such response or item"),
        ErrorCode("playback_ack_too_late", i, "not sent any more: late acknowledgements are counted and ignored"),
        # stages
        ErrorCode("runtime_append_failed", s, "a unit could not be given to the model, or the model failed on it"),
        ErrorCode("runtime_append_task_failed", s, "a unit failed unexpectedly; the session ends"),
        ErrorCode("runtime_signal_failed", s, "an update or a cancellation did not reach the model"),
        ErrorCode("runtime_abort_failed", s, "a stage could not be aborted"),
        ErrorCode("runtime_touch_failed", s, "heartbeat of a session that has ended"),
        ErrorCode("runtime_data_plane_stream_failed", s, "the model's output stream broke"),
        ErrorCode("runtime_data_plane_text_without_audio", s, "text without audio where audio is due"),
        ErrorCode("thinker_unavailable", s, "the language model cannot be reached", True),
        ErrorCode("thinker_timeout", s, "the language model did not answer in time", True),
        ErrorCode("thinker_failed", s, "the language model broke off or answered nonsense", True),
        ErrorCode("malformed_function_call", s, "the model called no function of the session, or not with JSON", True),
        ErrorCode("empty_answer", s, "the language model said nothing that can be spoken", True),
        ErrorCode("speech_failed", s, "the answer could not be made into sound", True),
        ErrorCode("speech_overloaded", s, "more answers wait to be spoken than can be", True),
        ErrorCode("recognition_overloaded", s, "speech could not be recognised in time; its turn is empty", True),
        ErrorCode("upstream_unavailable", s, "the server of the model cannot be reached", True),
        ErrorCode("upstream_refused", s, "the server of the model refuses the session"),
        ErrorCode("upstream_lost", s, "the server of the model ended the session or the connection", True),
        ErrorCode("upstream_timeout", s, "the server of the model does not answer in time", True),
        ErrorCode("upstream_failed", s, "the server of the model told an error of its own"),
        ErrorCode("upstream_backpressure", s, "the server of the model does not take its input fast enough", True),
        ErrorCode("superseded", s, "another answer was asked for before this one was made"),
        ErrorCode("worker_lost", s, "a stage worker died during the response", True),
        ErrorCode("worker_drained", s, "a stage worker was taken out of service", True),
        ErrorCode("shard_lost", s, "the session's shard died during the response", True),
        ErrorCode("poison_input", s, "one unit brought two workers down; the session ends"),
        ErrorCode("context_lost", s, "a worker was lost, and the model goes on without all that it had heard"),
        ErrorCode("context_exhausted", s, "the model's context is full and cannot be rolled over"),
        ErrorCode("server_vad_unavailable", s, "no speech detector on this server"),
        # session life and capacity
        ErrorCode("resource_exhausted", r, "no free place for another session", True),
        ErrorCode("session_exists", i, "the session id is in use"),
        ErrorCode("unknown_session", i, "no such session"),
        ErrorCode("session_closed", i, "the session is closing or closed"),
        ErrorCode("session_expired", i, "the session idled too long or reached its maximum"),
        ErrorCode("output_backpressure", s, "the client does not read fast enough"),
        ErrorCode("internal_error", s, "a fault of the server; the session goes on"),
        ErrorCode("engine_error", s, "the session service failed"),
        ErrorCode("engine_dead", i, "the session service is gone"),
        ErrorCode("engine_backpressure", i, "the session service takes no more commands", True),
        ErrorCode("timeout", i, "the session service did not answer in time", True),
        ErrorCode("stale_fence", i, "the command is of an older epoch"),
        ErrorCode("server_draining", s, "this server is being taken out of service", True),
        # resume
        ErrorCode("invalid_session_resume", i, "the resume message or query is malformed"),
        ErrorCode("session_resume_expired", i, "the session is unknown or has ended"),
        ErrorCode("unsupported_session_resume", i, "the model cannot resume, or the session is open already"),
        ErrorCode("invalid_resume_token", i, "the token is not the current one"),
        ErrorCode("session_resume_conflict", i, "the cursor is beyond the head, or another resume won"),
        ErrorCode("runtime_resume_failed", i, "the session could not be attached; try again", True),
        ErrorCode("session_resync_required", i, "entries after the cursor are gone; resume from head_seq"),
        ErrorCode("invalid_event_ack", i, "not a number, negative, or beyond the head"),
        ErrorCode("store_unavailable", s, "the store does not answer; try again", True),
        # HTTP
        ErrorCode("invalid_request", i, "a field of an HTTP request is missing, of a wrong type or out of range"),
        ErrorCode("request_too_large", i, "the body of an HTTP request is over its limit"),
        ErrorCode("model_not_supported", i, "the model does not answer this kind of request"),
        ErrorCode("not_available", i, "a route of the OpenAI API that this server does not serve"),
        ErrorCode("unknown_url", i, "no such route"),
        ErrorCode("method_not_allowed", i, "the route has no such method"),
        ErrorCode("upgrade_required", i, "the route is a WebSocket"),
        ErrorCode("key_required", i, "a client secret mints no further one"),
        # access
        ErrorCode("invalid_api_key", i, "the key is missing or unknown"),
        ErrorCode("origin_not_allowed", i, "the page's origin is not allowed here"),
        ErrorCode("too_many_undecodable_frames", i, "50 frames in 10 s that yield no command"),
    ]


_RESERVED = {
    "session_update_aborted": "a failed append fails its own turn: the updates behind it work",
    "commit_aborted": "a failed append fails its own turn: the commits behind it work",
    "function_response_backlog": "results wait for the model, as many as it made calls",
    "nemotron_function_call_parse_error": "told as `malformed_function_call`, whatever the model",
    "playback_ack_too_late": "a late acknowledgement is counted and ignored: it is no error",
    "runtime_append_task_failed": "a fault of the server is `internal_error`, and the session goes on",
    "runtime_signal_failed": "what a stage cannot take is refused before it is in force; a fault is `internal_error`",
    "runtime_abort_failed": "an abort that a worker leaves unanswered is counted; after a second the input goes on",
    "runtime_touch_failed": "a session that has ended says nothing behind its terminal event",
    "runtime_data_plane_stream_failed": "told as `runtime_append_failed`, or by the model's own code",
    "runtime_data_plane_text_without_audio": "text without sound is served, as a transcript alone",
    "engine_backpressure": "a session service that takes no more is waited for; the socket is not read meanwhile",
}
"""A test finds a code that is here and sent, or in neither place."""

ERROR_CODES: dict[str, ErrorCode] = {
    row.code: msgspec.structs.replace(row, reserved=_RESERVED.get(row.code, "")) for row in _rows()
}


def error_type_of(code: str) -> str:
    """The class of a code; a code of a model plugin that has no row is the client's."""
    row = ERROR_CODES.get(code)
    return INVALID if row is None else row.error_type


def is_retryable(code: str) -> bool:
    row = ERROR_CODES.get(code)
    return row is not None and row.retryable


def openai_code(code: str) -> str:
    """The name of a code in the OpenAI dialects."""
    row = ERROR_CODES.get(code)
    return code if row is None or row.openai is None else row.openai


def is_undecodable(error: RealtimeProtocolError) -> bool:
    """True of what yields no command: it counts towards the close after 50 such frames in 10 s."""
    return error.undecodable
