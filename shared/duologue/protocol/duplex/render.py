"""Events to bytes and back, in the duplex dialect."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from msgspec import UNSET

from duologue.protocol.duplex.events import DuplexEvent, UnknownEvent
from duologue.protocol.realtime.events import RealtimeEvent
from duologue.protocol.realtime.json_types import JsonObject

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[DuplexEvent] = msgspec.json.Decoder(DuplexEvent)
_generic: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

render = _encoder.encode
"""`render(event) -> bytes`: compact UTF-8 JSON of one event, without `server_event_seq`."""


def splice_seq(body: bytes, seq: int) -> bytes:
    """A rendered event with its number as the last key."""
    return b'%b,"server_event_seq":%d}' % (body[:-1], seq)


_KINDS: dict[str, Any] = {str(kind.__struct_config__.tag): kind for kind in get_args(DuplexEvent)}


def event_from_realtime(raw: bytes | str | JsonObject) -> DuplexEvent | UnknownEvent:
    """An event as a client reads it, leniently.

    An unknown type becomes an `UnknownEvent`; fields that are missing or of another type take the neutral
    value of their own type. Raises msgspec.DecodeError if it is no JSON object with a `type`.
    """
    if not isinstance(raw, dict):
        try:
            try:
                return _decoder.decode(raw)
            except msgspec.ValidationError:
                raw = _generic.decode(raw)
        except (UnicodeError, RecursionError) as error:
            raise msgspec.DecodeError(f"an event is JSON: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
        raise msgspec.DecodeError("an event is a JSON object with a type")
    kind = _KINDS.get(raw["type"])
    if kind is None:
        return _unknown(raw)
    event: DuplexEvent
    try:
        event = msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        event = _patched(raw, kind)
    return event


def _unknown(raw: JsonObject) -> UnknownEvent:
    seq = raw.get("server_event_seq")
    event_id = raw.get("event_id")
    return UnknownEvent(
        type=raw["type"],
        raw=raw,
        event_id=event_id if isinstance(event_id, str) else "",
        server_event_seq=seq if type(seq) is int else UNSET,
    )


def _patched(raw: JsonObject, kind: type[RealtimeEvent]) -> Any:
    """Field by field: what fits is taken."""
    values = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in raw:
            try:
                values[field.name] = msgspec.convert(raw[field.encode_name], field.type)
                continue
            except msgspec.ValidationError:
                pass
        if field.required:
            values[field.name] = _neutral(field.type)
    return kind(**values)


def _neutral(kind: Any) -> Any:
    """The empty value of a field's type: null where allowed, else "", 0, {} or a struct of such."""
    options: tuple[Any, ...] = getattr(kind, "__args__", ())
    if type(None) in options:
        return None
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{f.name: _neutral(f.type) for f in msgspec.structs.fields(kind) if f.required})
    origin = getattr(kind, "__origin__", kind)
    if isinstance(origin, type):
        return origin()
    return _neutral(options[0])
