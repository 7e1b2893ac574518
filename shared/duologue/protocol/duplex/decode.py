"""One text frame of a client to one command, strictly.

The hot path is one typed decode, base64 included. Only what it refuses is read again, to say what is wrong:
which field, which code, and the client's own event_id.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn, get_args

import msgspec
from msgspec import UNSET

from duologue.protocol.duplex import commands as to
from duologue.protocol.duplex import wire
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.json_guard import MAX_DEPTH, read_leniently, too_deep
from duologue.protocol.realtime.json_places import find_not_finite
from duologue.protocol.realtime.json_types import JsonObject
from duologue.protocol.realtime.limits import MAX_EVENT_ID
from duologue.protocol.realtime.strict import refusal

ALIASES = {
    "input_text.append": "input.text.append",
    "push_text": "input.text.append",
    "signal_turn": "turn.signal",
    "audio.playback_ack": "playback.ack",
    "close": "session.close",
    "close_session": "session.close",
}

WIRE_TYPES: dict[str, type[wire.Written]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(wire.WrittenCommand)
}

# What `turn.signal` may carry: its payload is that command.
CARRIED = frozenset(
    {
        "input.cancel",
        "barge_in",
        "response.cancel",
        "output_audio_buffer.clear",
        "session.update",
        "conversation.item.create",
        "conversation.item.retrieve",
        "conversation.item.delete",
        "conversation.item.truncate",
    }
)
_CLOSING_SIGNALS = {"timeout": "timeout", "close": "client_close"}

# Codes by wire type and field; anything else that is wrong is bad_event.
_CODES: dict[str, dict[str, str]] = {
    "session.resume": dict.fromkeys(
        ("session_id", "resume_token", "last_received_server_event_seq"), "invalid_session_resume"
    ),
    "session.event_ack": {"server_event_seq": "invalid_event_ack"},
    "input_audio_buffer.append": {"video_frames": "invalid_video_frames"},
    "conversation.item.retrieve": {"item_id": "missing_item_id"},
    "conversation.item.delete": {"item_id": "missing_item_id"},
    "conversation.item.truncate": {"item_id": "missing_item_id"},
}

_LONE = re.compile("[\ud800-\udfff]")

_decoder: msgspec.json.Decoder[wire.WrittenCommand] = msgspec.json.Decoder(wire.WrittenCommand)
_generic: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _Head(msgspec.Struct):
    """Enough to refuse an unknown type without building what it carries."""

    type: Any = None
    event_id: Any = None


_head: msgspec.json.Decoder[_Head] = msgspec.json.Decoder(_Head)


def command_from_realtime(frame: str | bytes) -> to.DuplexCommand:
    """Read one frame; `str` is a text frame, `bytes` a binary one, which no client may send.

    Raises RealtimeProtocolError, with `event_id` and `param` where they are known.
    """
    if not isinstance(frame, str):
        raise RealtimeProtocolError("bad_event", "binary frames are not accepted", undecodable=True)
    if too_deep(frame):
        raise RealtimeProtocolError("bad_event", f"nested deeper than {MAX_DEPTH} levels", undecodable=True)
    try:
        written = _decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _from_object(_object(frame))
    if type(written) is wire.TurnSignal or (type(written) is wire.Update and written.session is UNSET):
        return _from_object(_object(frame))
    return _canonical(written)


def _canonical(written: wire.Written) -> to.DuplexCommand:
    try:
        return written.canonical()
    except RealtimeProtocolError as error:
        error.event_id = written.event_id
        raise


def _object(frame: str) -> JsonObject:
    """The frame as a JSON object, or the error of something that yields no command."""
    _refuse_unknown(frame)
    try:
        data = _generic.decode(frame)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        _refuse_malformed(frame)
    if not isinstance(data, dict):
        raise RealtimeProtocolError("bad_event", "an event must be a JSON object", undecodable=True)
    return data


def _refuse_unknown(frame: str) -> None:
    try:
        head = _head.decode(frame)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return  # the whole reader says what is wrong
    _kind(head.type, _event_id({"event_id": head.event_id}))


def _refuse_malformed(frame: str) -> NoReturn:
    try:
        data = read_leniently(frame)
    except ValueError:
        raise RealtimeProtocolError("invalid_json", "the frame is not JSON", undecodable=True) from None
    place = find_not_finite(data)
    if place is None:  # JSON to a lenient reader only, such as half a surrogate pair
        raise RealtimeProtocolError("invalid_json", "the frame is not JSON", undecodable=True)
    raise RealtimeProtocolError(
        "bad_event",
        f"{place or 'the frame'} must be finite",
        param=place,
        event_id=_event_id(data),
        undecodable=True,
    )


def _event_id(data: Any) -> str | None:
    """The client's own id, unless it is too long to be echoed, or no text (half a surrogate pair)."""
    event_id = data.get("event_id") if isinstance(data, dict) else None
    if not isinstance(event_id, str) or len(event_id) > MAX_EVENT_ID or _LONE.search(event_id):
        return None
    return event_id


def _kind(name: Any, event_id: str | None) -> tuple[str, type[wire.Written]]:
    """The canonical wire type of a `type`, and its class."""
    if not isinstance(name, str):
        raise RealtimeProtocolError(
            "bad_event", "an event needs a type, a string", param="type", event_id=event_id, undecodable=True
        )
    name = ALIASES.get(name, name)
    kind = WIRE_TYPES.get(name)
    if kind is None:
        raise RealtimeProtocolError(
            "unknown_event", f"unknown event type {name[:80]!r}", param="type", event_id=event_id
        )
    return name, kind


def _from_object(data: JsonObject) -> to.DuplexCommand:
    event_id = _event_id(data)
    name, kind = _kind(data.get("type"), event_id)
    if kind is wire.Update and "session" not in data:
        patch = {key: value for key, value in data.items() if key not in ("type", "event_id")}
        data = {"event_id": data.get("event_id"), "session": patch}
    written = _convert({**data, "type": name}, name, kind, event_id)
    if isinstance(written, wire.TurnSignal):
        return _signal(written)
    return _canonical(written)


def _convert(data: JsonObject, name: str, kind: type[wire.Written], event_id: str | None) -> wire.Written:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        refused = refusal(error, _CODES.get(name, {}))
        if refused.message.endswith("Invalid base64 encoded string"):
            refused.code = "bad_audio"
        refused.event_id = event_id
        raise refused from None


def _signal(signal: wire.TurnSignal) -> to.DuplexCommand:
    """A signal that carries another command becomes it."""
    closing = _CLOSING_SIGNALS.get(signal.event)
    if closing is not None:
        return to.SessionClose(event_id=signal.event_id, reason=closing)
    if signal.event not in CARRIED:
        return _canonical(signal)
    payload: JsonObject = {"response_id": signal.response_id} if signal.response_id is not None else {}
    payload |= signal.payload or {}
    payload |= {"type": signal.event, "event_id": signal.event_id}
    try:
        return _from_object(payload)
    except RealtimeProtocolError as error:
        raise error.under("payload") from None
