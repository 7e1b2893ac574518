"""The one door of the protocol room: everything that other rooms use.

Rule 1. What only a server needs (reading frames, converting sound) is imported when it is first asked for: it needs
        numpy, and the client library, which comes through this door too, must not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from duologue.protocol.duplex.commands import (
    AckPlayback,
    AppendAudio,
    AppendText,
    BargeIn,
    CancelInput,
    Commit,
    DuplexCommand,
    SessionClose,
    SessionEventAck,
    SessionHeartbeat,
    SessionResume,
    TurnSignal,
    VadHint,
    decode_command,
    encode_command,
)
from duologue.protocol.duplex.events import (
    AudioDelta,
    AudioMetadata,
    DuplexEvent,
    FunctionCallFallback,
    InputCommitted,
    ItemDeleted,
    ItemTruncated,
    ListenMetadata,
    ListenResponse,
    OverlapDecision,
    Playback,
    PlaybackAcknowledged,
    PlaybackState,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    ResponseSpeak,
    SessionClosed,
    SessionCreated,
    SessionExpired,
    SessionExpiring,
    SessionGoingAway,
    SessionHeartbeatAck,
    SessionReplaced,
    SessionResumed,
    SessionResyncRequired,
    SpeakMetadata,
    TranscriptDelta,
    TurnEvent,
    UnknownEvent,
    error_event,
)
from duologue.protocol.duplex.projection import (
    project,
)
from duologue.protocol.duplex.render import (
    event_from_realtime,
    render,
    splice_seq,
)
from duologue.protocol.duplex.session import (
    CommitPolicy,
    OverflowPolicy,
    OverlapPolicy,
    SessionConfig,
    SessionLimits,
    changed,
)
from duologue.protocol.duplex.session_view import (
    SessionRuntimeView,
    SessionView,
    session_object,
)
from duologue.protocol.realtime.capabilities import (
    DuplexCapabilities,
)
from duologue.protocol.realtime.commands import (
    CancelResponse,
    ClearInput,
    ClearOutput,
    ClientCommand,
    CreateItem,
    CreateResponse,
    DeleteItem,
    ItemAudio,
    ResponseOptions,
    RetrieveItem,
    SessionUpdate,
    TruncateItem,
)
from duologue.protocol.realtime.dialect import (
    Dialect,
)
from duologue.protocol.realtime.errors import (
    ERROR_CODES,
    ErrorCode,
    RealtimeProtocolError,
    error_type_of,
    is_undecodable,
    openai_code,
)
from duologue.protocol.realtime.events import (
    ArgumentsDelta,
    ArgumentsDone,
    AudioDone,
    ContentPartAdded,
    ContentPartDone,
    ErrorDetail,
    ErrorEvent,
    InputCleared,
    ItemAdded,
    ItemCreated,
    ItemDone,
    ItemRetrieved,
    OutputCleared,
    OutputItemAdded,
    OutputItemDone,
    RateLimitsUpdated,
    RealtimeEvent,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    TextDone,
    TranscriptDone,
    TranscriptionCompleted,
)
from duologue.protocol.realtime.formats import (
    AudioFormat,
    fold_format,
    resolve_rate,
)
from duologue.protocol.realtime.items import (
    ContentPart,
    ConversationEntry,
    Item,
    Response,
    StatusDetails,
    TextMark,
    assistant_item,
    function_call_item,
    message_item,
)
from duologue.protocol.realtime.json_types import (
    JsonObject,
)
from duologue.protocol.realtime.text_marks import (
    truncate_text,
)
from duologue.protocol.realtime.turn_detection import (
    SemanticVad,
    ServerVad,
    TurnDetection,
)

if TYPE_CHECKING:
    from duologue.protocol.duplex.decode import command_from_realtime
    from duologue.protocol.realtime.audio.convert import InputConverter, OutputConverter
    from duologue.protocol.realtime.audio.samples import decode_samples, encode_samples, rms

_LATER = {
    "command_from_realtime": "duologue.protocol.duplex.decode",
    "InputConverter": "duologue.protocol.realtime.audio.convert",
    "OutputConverter": "duologue.protocol.realtime.audio.convert",
    "decode_samples": "duologue.protocol.realtime.audio.samples",
    "encode_samples": "duologue.protocol.realtime.audio.samples",
    "rms": "duologue.protocol.realtime.audio.samples",
}


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


__all__ = [
    "AckPlayback",
    "AppendAudio",
    "AppendText",
    "ArgumentsDelta",
    "ArgumentsDone",
    "AudioDelta",
    "AudioDone",
    "AudioFormat",
    "AudioMetadata",
    "BargeIn",
    "CancelInput",
    "CancelResponse",
    "ClearInput",
    "ClearOutput",
    "ClientCommand",
    "Commit",
    "CommitPolicy",
    "ContentPart",
    "ContentPartAdded",
    "ContentPartDone",
    "ConversationEntry",
    "CreateItem",
    "CreateResponse",
    "DeleteItem",
    "Dialect",
    "DuplexCapabilities",
    "DuplexCommand",
    "DuplexEvent",
    "ERROR_CODES",
    "ErrorCode",
    "ErrorDetail",
    "ErrorEvent",
    "FunctionCallFallback",
    "InputCleared",
    "InputCommitted",
    "InputConverter",
    "Item",
    "ItemAdded",
    "ItemAudio",
    "ItemCreated",
    "ItemDeleted",
    "ItemDone",
    "ItemRetrieved",
    "ItemTruncated",
    "JsonObject",
    "ListenMetadata",
    "ListenResponse",
    "OutputCleared",
    "OutputConverter",
    "OutputItemAdded",
    "OutputItemDone",
    "OverflowPolicy",
    "OverlapDecision",
    "OverlapPolicy",
    "Playback",
    "PlaybackAcknowledged",
    "PlaybackState",
    "RateLimitsUpdated",
    "RealtimeEvent",
    "RealtimeProtocolError",
    "Response",
    "ResponseCreated",
    "ResponseDone",
    "ResponseListen",
    "ResponseOptions",
    "ResponseSpeak",
    "RetrieveItem",
    "SemanticVad",
    "ServerVad",
    "SessionClose",
    "SessionClosed",
    "SessionConfig",
    "SessionCreated",
    "SessionEventAck",
    "SessionExpired",
    "SessionExpiring",
    "SessionGoingAway",
    "SessionHeartbeat",
    "SessionHeartbeatAck",
    "SessionLimits",
    "SessionReplaced",
    "SessionResume",
    "SessionResumed",
    "SessionResyncRequired",
    "SessionRuntimeView",
    "SessionUpdate",
    "SessionUpdated",
    "SessionView",
    "SpeakMetadata",
    "SpeechStarted",
    "SpeechStopped",
    "StatusDetails",
    "TextDelta",
    "TextDone",
    "TextMark",
    "TranscriptDelta",
    "TranscriptDone",
    "TranscriptionCompleted",
    "TruncateItem",
    "TurnDetection",
    "TurnEvent",
    "TurnSignal",
    "UnknownEvent",
    "VadHint",
    "assistant_item",
    "changed",
    "command_from_realtime",
    "decode_command",
    "decode_samples",
    "encode_command",
    "encode_samples",
    "error_event",
    "error_type_of",
    "event_from_realtime",
    "fold_format",
    "function_call_item",
    "is_undecodable",
    "message_item",
    "openai_code",
    "project",
    "render",
    "resolve_rate",
    "rms",
    "session_object",
    "splice_seq",
    "truncate_text",
]
