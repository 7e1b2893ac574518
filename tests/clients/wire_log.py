"""What the server wrote to a client, read back from the bytes, and what must hold for all of it.

Rule 1. Every event is valid for the `openai` package's union of server events, and small enough for every client.
Rule 2. The events of a response come in order, and none after its `response.done`.
Rule 3. No `error`, but for the codes that a scene asks for.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter, ValidationError

Event = dict[str, Any]

MAX_FRAME_BYTES = 1024 * 1024
_TEXT, _CONTINUED, _CLOSE = 1, 0, 8
_server_event: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)

#: The steps of an item of a response: none comes before one that stands higher.
STEPS = {
    "response.output_item.added": 0,
    "response.content_part.added": 1,
    "response.output_audio.delta": 2,
    "response.output_audio_transcript.delta": 2,
    "response.output_text.delta": 2,
    "response.function_call_arguments.delta": 2,
    "response.content_part.done": 3,
    "response.output_item.done": 4,
}


@dataclass
class Received:
    """One connection as its client saw it."""

    status: int = 0
    """Of the upgrade; 101 for a WebSocket."""
    frames: list[bytes] = field(default_factory=list)
    close_code: int | None = None

    @property
    def events(self) -> list[Event]:
        return [json.loads(frame) for frame in self.frames]


def read(data: bytes) -> Received:
    """A whole connection, as far as it came."""
    head, found, rest = data.partition(b"\r\n\r\n")
    received = Received()
    if not found:
        return received
    received.status = int(head.split(None, 2)[1])
    if received.status != 101:
        return received
    lines = head.lower()
    inflate = _Inflate(b"server_no_context_takeover" in lines) if b"permessage-deflate" in lines else None
    pending, packed = b"", False
    for opcode, compressed, final, payload in _frames(rest):
        if opcode == _CLOSE:
            received.close_code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
        elif opcode in (_TEXT, _CONTINUED):
            packed = compressed if opcode == _TEXT else packed
            pending += payload
            if final:
                received.frames.append(inflate(pending) if packed and inflate else pending)
                pending = b""
    return received


class _Inflate:
    """permessage-deflate (RFC 7692), the receiving half."""

    def __init__(self, fresh: bool) -> None:
        self._fresh = fresh
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)

    def __call__(self, message: bytes) -> bytes:
        if self._fresh:
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        return self._inflate.decompress(message + b"\x00\x00\xff\xff")


def _frames(data: bytes) -> Iterator[tuple[int, bool, bool, bytes]]:
    """Opcode, compressed, final, payload of the frames that are whole. A server masks nothing."""
    at = 0
    while at + 2 <= len(data):
        first, length = data[at], data[at + 1] & 0x7F
        extra = {126: 2, 127: 8}.get(length, 0)
        start = at + 2 + extra
        if extra:
            length = int.from_bytes(data[at + 2 : start], "big")
        if start + length > len(data):
            return
        yield first & 0x0F, bool(first & 0x40), bool(first & 0x80), data[start : start + length]
        at = start + length


def violations(received: Received, allowed_errors: Iterable[str] = ()) -> list[str]:
    """One line for each rule that a connection broke."""
    allowed = set(allowed_errors)
    found = [f"a frame of {len(frame)} bytes" for frame in received.frames if len(frame) >= MAX_FRAME_BYTES]
    events = received.events
    for event in events:
        found += _invalid(event)
        if event.get("type") == "error" and event["error"].get("code") not in allowed:
            found.append(f"an error that nobody asked for: {event['error']}")
    return found + _out_of_order(events)


def _invalid(event: Event) -> list[str]:
    try:
        _server_event.validate_python(event)
    except ValidationError as error:
        kind = str(event.get("type"))
        places = [e for e in error.errors() if kind in map(str, e["loc"]) or len(error.errors()) < 3]
        told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in (places or error.errors())[:3])
        return [f"{kind} is not what the openai package expects: {told}"]
    return [] if isinstance(event.get("event_id"), str) else [f"{event.get('type')} has no event_id"]


def _out_of_order(events: list[Event]) -> list[str]:
    found, over, reached = [], set(), defaultdict[Any, int](int)
    for event in events:
        kind = event["type"]
        response = event.get("response_id") or (event.get("response") or {}).get("id")
        if kind.startswith("response.") and response in over:
            found.append(f"{kind} came after response.done")
        if kind == "response.done":
            over.add(response)
        if kind in STEPS:
            item = event.get("item_id") or (event.get("item") or {}).get("id")
            if STEPS[kind] < reached[item]:
                found.append(f"{kind} of {item} came too late")
            reached[item] = max(reached[item], STEPS[kind])
    return found
