"""What a peer of the bus sends: parts of a multipart message, taken apart, read, and given to a link.

An input is one msgpack list: how it is sent, then a header, the messages, and their payload frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from fuzz import hostile, mutators
from fuzz.examples import examples
from fuzz.target import Target
from fuzz.trees import write_msgpack

from duologue.bus.codec import (
    BYE,
    DATA,
    HELLO,
    IDLE,
    READY,
    Batch,
    BatchWriter,
    Greeting,
    Header,
    decode_batch,
    decode_greeting,
    decode_header,
    encode_greeting,
    encode_header,
    encode_message,
    frame_sizes,
)
from duologue.bus.link import Peer
from duologue.bus.machine import LinkMachine, LinkOptions
from duologue.bus.messages import AnyMessage
from duologue.bus.stats import LinkStats
from duologue.bus.zmq_packing import pack_parts, unpack_parts

_ME, _THEIR = Peer("shard", "session", "me"), Peer("gateway", "gateway", "them")
_OPTIONS = LinkOptions()


def check(data: bytes) -> bool:
    try:
        tree = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        tree = []
    if len(tree) < 3:
        parts = unpack_parts([data])
    else:
        way, header, messages = (bytes(part) for part in tree[:3])
        parts = _parts(way, header, messages, [_payload(bytes(part)) for part in tree[3:]])
    return _received(parts)


def _payload(part: bytes) -> bytes:
    try:
        made = msgspec.msgpack.decode(part)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return part
    return made if isinstance(made, bytes) else part


def _parts(way: bytes, header: bytes, messages: bytes, frames: list[bytes]) -> list[bytes]:
    """As they are packed for the socket and taken apart again; or as they are."""
    small = [frame for frame in frames if len(frame) < 16 * 1024]
    large = [frame for frame in frames if len(frame) >= 16 * 1024]
    parts: list[bytes] = [header, messages, b"".join(small), *large] if frames else [header, messages]
    if way == b"\x00":
        return parts
    packed = [bytes(part) for part in pack_parts(parts)]
    unpacked = unpack_parts(packed)
    assert unpacked == parts, "parts were taken apart differently"
    return unpacked


def _received(parts: Sequence[bytes]) -> bool:
    header = decode_header(parts[0]) if parts else None
    if header is None:
        return False
    assert decode_header(encode_header(header)) == header
    greeting = decode_greeting(parts)
    if greeting is not None:
        assert decode_greeting([b"", encode_greeting(greeting)]) == greeting
    batch = decode_batch(header, parts)
    if isinstance(batch, Batch):
        _same(batch)
    _linked(header, parts, greeting)
    return isinstance(batch, Batch) or greeting is not None


def _same(batch: Batch) -> None:
    """Written again and read again it says the same, and so it does a second time."""
    first = _written(batch)
    counts, sizes, parts = first
    again = decode_batch(Header(1, DATA, "", "", 1, 1, 0, False, counts, sizes), [b"", *parts])
    assert isinstance(again, Batch), "what was read cannot be read again"
    assert _written(again) == first, "messages do not come back the same"


def _written(batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...], list[bytes]]:
    writer = BatchWriter()
    for message, frames in zip(batch.messages, batch.frames, strict=True):
        writer.add_encoded(encode_message(message), frames, frame_sizes(frames))
    counts, sizes, parts = writer.take()
    return counts, sizes, [bytes(part) for part in parts]


def _linked(header: Header, parts: Sequence[bytes], greeting: Greeting | None) -> None:
    """Both sides of a link take it in, whatever state they are in, and have something valid to say to it."""
    addressed = msgspec.structs.replace(header, link=1, sender=_THEIR.incarnation, receiver=_ME.incarnation)
    hello = Header(1, HELLO, _THEIR.incarnation, "", 1, 0, 1 << 20)
    listener = LinkMachine.accept(_ME, _OPTIONS, hello, Greeting("gateway", "gateway", 1 << 20), LinkStats(), 0.0)
    dialler = LinkMachine.dial(_ME, _OPTIONS, 1, "gateway", LinkStats(), 0.0)
    for machine in (listener, dialler):
        for one in (addressed, msgspec.structs.replace(addressed, seq=1), header):
            batch = machine.receive(one, parts, 0.0)
            if batch is not None:
                machine.consumed(batch.size)
        machine.tick(1.0)
        for sent in machine.take(1.0):
            assert decode_header(bytes(sent[0])) is not None
    if greeting is not None:
        LinkMachine.accept(_ME, _OPTIONS, header, greeting, LinkStats(), 0.0).take(0.0)


# -- the corpus -------------------------------------------------------------------------------------------


def _header(kind: int, counts: list[int], sizes: list[int]) -> list[Any]:
    return [1, kind, "them", "me", 1, 1, 1 << 20, False, counts, sizes]


def seeds() -> Iterator[bytes]:
    made = [write_msgpack(message) for message in examples(AnyMessage, {}, encoded=False)]
    for message in made:
        for way in (0, 1):
            yield _input(way, _header(DATA, [0], []), b"\xdd\0\0\0\1" + message)
    small, large = b"\1" * 640, b"\2" * 20_000
    both = _header(DATA, [1, 1], [640, 20_000])
    yield _input(1, both, b"\xdd\0\0\0\2" + made[0] + made[5], small, large)
    yield _input(1, _header(DATA, [3, -1], [640, 640]), b"\xdd\0\0\0\2" + made[0] + made[5], small, small)
    for kind in (HELLO, READY, IDLE, BYE):
        yield _input(1, _header(kind, [], []), write_msgpack(["gateway", "gateway", 1 << 20]))
    for value in hostile.MSGPACK:
        raw = write_msgpack(value)
        yield _input(1, _header(DATA, [0], []), raw)
        yield _input(1, _header(DATA, [0], []), b"\xdd\0\0\0\1" + raw)
        for at in range(10):
            header = _header(DATA, [0], [])
            header[at] = value
            yield _input(1, header, b"\xdd\0\0\0\1" + made[2])
    packed = pack_parts([encode_header(Header(1, DATA, "a", "b", 1, 1, 1)), b"\xdd\0\0\0\0", b"x"])
    yield bytes(packed[0])
    yield from (bytes(packed[0])[:cut] for cut in (0, 3, 11, 12, 20))
    yield b"\xff" * 12 + bytes(packed[0])


def _input(way: int, header: list[Any], messages: bytes, *frames: bytes) -> bytes:
    body = [write_msgpack(way), write_msgpack(header), messages, *map(write_msgpack, frames)]
    return bytes((0xDD, 0, 0, 0, len(body))) + b"".join(body)


TARGET = Target(
    "bus-frames",
    check,
    seeds,
    mutators.of_msgpack(seeds),
    ("duologue.bus.codec", "duologue.bus.machine", "duologue.bus.zmq_packing", "duologue.bus.messages"),
)
