"""The bytes of a multipart message: [header][msgpack list of messages][small frames][large frame] ...

Payload frames below `PACK_BYTES` travel end to end in one part (every part costs 3 to 4 us over its way,
copying 4 KiB a tenth of that), larger ones are a part each. The header says how long each frame is.

Rule 1. The header is a small msgpack array, the same for every kind. Fields are only added at its end.
Rule 2. Payload frames travel beside the list and are never encoded.
Rule 3. Nothing that a peer sends raises: reading answers `None` or a `Fault`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from duologue.bus.link import Frame
from duologue.bus.messages import AnyMessage, Message

HELLO: Final = 0
"""The dialler opens; body: `Greeting`."""
READY: Final = 1
"""The listener agrees; body: `Greeting`."""
DATA: Final = 2
"""Messages; the only kind that moves the sequence number."""
IDLE: Final = 3
"""Heartbeat, grant, or both; no body."""
BYE: Final = 4
"""The link is over; body: the reason."""

PACK_BYTES: Final = 16 * 1024
"""A frame shorter than this shares a part with others."""
_LIST_HEADER_BYTES: Final = 5
_LIST_HEADER: Final = struct.Struct(">BI")
_ARRAY32: Final = 0xDD


class Header(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """First part of every multipart message."""

    version: int
    kind: int
    sender: str
    """Incarnation of the sender."""
    receiver: str
    """Incarnation that it talks to; empty in HELLO."""
    link: int
    """Number of the dialler's attempt: a link is never continued, only followed by another."""
    seq: int
    """DATA: its own number, from 1. Else the number of the last DATA sent on this link."""
    grant: int
    """Bytes, counted from the start of the link, that the receiver of this header may send."""
    ask: bool = False
    """The sender is out of credit and wants a grant without waiting for the usual moment."""
    frames: tuple[int, ...] = ()
    """DATA: how many payload frames belong to each message."""
    sizes: tuple[int, ...] = ()
    """DATA: bytes of each payload frame, of all messages in order."""


class Greeting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Body of HELLO and READY: who is there and how many bytes it takes before it grants more."""

    name: str
    kind: str
    window: int


class Fault(Enum):
    """Why a DATA message could not be read."""

    BODY = "body"
    FRAMES = "frames"


class Batch(NamedTuple):
    """The messages of one DATA message, each with its frames, and the bytes they count as credit."""

    messages: list[AnyMessage]
    frames: list[Sequence[bytes]]
    size: int


_encoder: Final = msgspec.msgpack.Encoder()
_header_decoder: Final = msgspec.msgpack.Decoder(Header)
_greeting_decoder: Final = msgspec.msgpack.Decoder(Greeting)
_batch_decoder: Final[msgspec.msgpack.Decoder[list[AnyMessage]]] = msgspec.msgpack.Decoder(list[AnyMessage])
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class BatchWriter:
    """Collects the messages of one turn. Each is encoded when it is added: its cost is known at once."""

    __slots__ = ("_body", "_counts", "_large", "_sizes", "_small")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._body = bytearray(_LIST_HEADER_BYTES)
        self._counts: list[int] = []
        self._sizes: list[int] = []
        self._small: list[Frame] = []
        self._large: list[Frame] = []

    def __len__(self) -> int:
        return len(self._counts)

    def add_encoded(self, encoded: bytes, frames: Sequence[Frame], sizes: Sequence[int]) -> None:
        """Take one message that `encode_message` made, with its payload and the `frame_sizes` of it."""
        self._body += encoded
        self._counts.append(len(sizes))
        if not sizes:
            return
        self._sizes += sizes
        if max(sizes) < PACK_BYTES:
            self._small += frames
            return
        for frame, size in zip(frames, sizes, strict=True):
            (self._small if size < PACK_BYTES else self._large).append(frame)

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...], list[Frame]]:
        """What was added since: (frames per message, bytes per frame, the parts after the header)."""
        _LIST_HEADER.pack_into(self._body, 0, _ARRAY32, len(self._counts))
        parts: list[Frame] = [bytes(self._body)]
        if self._sizes:
            parts.append(b"".join(self._small))
            parts.extend(self._large)
        counts, sizes = tuple(self._counts), tuple(self._sizes)
        self._begin()
        return counts, sizes, parts


def encode_message(message: Message) -> bytes:
    """The message alone, as it will stand in the list."""
    return _encoder.encode(message)


def frame_sizes(frames: Sequence[Frame]) -> list[int]:
    """Bytes of each frame (a memoryview counts bytes, not items)."""
    return [frame.nbytes if type(frame) is memoryview else len(frame) for frame in frames]


def encode_header(header: Header) -> bytes:
    return _encoder.encode(header)


def encode_greeting(greeting: Greeting) -> bytes:
    return _encoder.encode(greeting)


def decode_header(part: bytes) -> Header | None:
    try:
        return _header_decoder.decode(part)
    except _UNREADABLE:
        return None


def decode_greeting(parts: Sequence[bytes]) -> Greeting | None:
    """The body of a HELLO or READY."""
    if len(parts) != 2:
        return None
    try:
        return _greeting_decoder.decode(parts[1])
    except _UNREADABLE:
        return None


def decode_batch(header: Header, parts: Sequence[bytes]) -> Batch | Fault:
    """The messages of a DATA message; `parts` includes the header."""
    if len(parts) < 2:
        return Fault.BODY
    try:
        messages = _batch_decoder.decode(parts[1])
    except _UNREADABLE:
        return Fault.BODY
    payload = _unpack(header.sizes, parts)
    counts = header.frames
    if payload is None or len(messages) != len(counts) or sum(counts) != len(payload):
        return Fault.FRAMES
    frames: list[Sequence[bytes]] = []
    at = 0
    for count in counts:
        if count < 0:
            return Fault.FRAMES
        frames.append(payload[at : at + count])
        at += count
    return Batch(messages, frames, len(parts[1]) - _LIST_HEADER_BYTES + sum(header.sizes))


def _unpack(sizes: Sequence[int], parts: Sequence[bytes]) -> list[bytes] | None:
    """The payload frames, in order. None when they are not as long as announced."""
    if not sizes:
        return [] if len(parts) == 2 else None
    if len(parts) < 3:
        return None
    packed = parts[2]
    payload: list[bytes] = []
    at, part = 0, 3
    for size in sizes:
        if size < 0:
            return None
        if size < PACK_BYTES:
            payload.append(packed[at : at + size])
            at += size
        elif part < len(parts) and len(parts[part]) == size:
            payload.append(parts[part])
            part += 1
        else:
            return None
    return payload if at == len(packed) and part == len(parts) else None
