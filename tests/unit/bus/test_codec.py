"""The codec: what goes in comes out, and what is corrupt is a result, never an exception."""

from __future__ import annotations

import random

import msgspec
import pytest

from duologue.bus.codec import (
    DATA,
    PACK_BYTES,
    Batch,
    BatchWriter,
    Fault,
    Header,
    decode_batch,
    decode_greeting,
    decode_header,
    encode_header,
    encode_message,
    frame_sizes,
)
from duologue.bus.link import Frame
from duologue.bus.messages import (
    Abort,
    AnyMessage,
    Append,
    Attached,
    Deliveries,
    Delivery,
    OpenSession,
    Output,
    StagesOpened,
)
from duologue.fence import CommandNo, Owner, StageFence

pytestmark = pytest.mark.unit

FENCE = StageFence(3, 2, 1)
MESSAGES: list[tuple[AnyMessage, list[Frame]]] = [
    (Append("s", FENCE, 1, 7, 2, urgent=True), [b"head", b"x" * 3840]),
    (Abort("s", FENCE), []),
    (Deliveries("s", Owner(4, "inc"), (Delivery(1, "resp_1", 2), Delivery(2))), [b"{}", b""]),
    (OpenSession("s", "duplex", "p", b"\x00\xff", "gw"), [bytearray(b"{}")]),
    (Attached("s", 2, Owner(1, "i"), CommandNo(1, 9), None, 80), [b"{}", b""]),
    (Attached("s", 2, Owner(1, "i"), CommandNo(), None, 0, end=Delivery(8, close_code=1000)), [b"{}", b""]),
    (Output("s", FENCE, 0, 1, 2, 3), [b"y" * (PACK_BYTES * 3), memoryview(b"small"), b"z" * PACK_BYTES]),
    (StagesOpened("s", FENCE, (0, 1, 2)), []),
]


def batch_parts(messages: list[tuple[AnyMessage, list[Frame]]]) -> tuple[Header, list[bytes]]:
    writer = BatchWriter()
    for message, frames in messages:
        writer.add_encoded(encode_message(message), frames, frame_sizes(frames))
    counts, sizes, parts = writer.take()
    header = Header(1, DATA, "a", "b", 1, 1, 100, False, counts, sizes)
    return header, [encode_header(header), *(bytes(part) for part in parts)]


def test_messages_and_frames_come_back_as_they_were() -> None:
    header, parts = batch_parts(MESSAGES)
    batch = decode_batch(header, parts)
    assert isinstance(batch, Batch)
    assert batch.messages == [message for message, _ in MESSAGES]
    assert [list(frames) for frames in batch.frames] == [[bytes(f) for f in frames] for _, frames in MESSAGES]


def test_the_receiver_counts_what_the_sender_counted() -> None:
    header, parts = batch_parts(MESSAGES)
    batch = decode_batch(header, parts)
    assert isinstance(batch, Batch)
    assert batch.size == sum(len(encode_message(m)) + sum(frame_sizes(f)) for m, f in MESSAGES)


def test_small_frames_share_a_part_and_large_ones_do_not() -> None:
    _, parts = batch_parts(MESSAGES)
    assert [len(part) >= PACK_BYTES for part in parts] == [False, False, False, True, True]
    _, bare = batch_parts([(Abort("s", FENCE), [])])
    assert len(bare) == 2


def test_a_memoryview_counts_bytes_not_items() -> None:
    assert frame_sizes([memoryview(bytearray(8)).cast("I"), b"abc"]) == [8, 3]


def test_a_writer_starts_anew_after_take() -> None:
    writer = BatchWriter()
    writer.add_encoded(encode_message(Abort("s", FENCE)), [], [])
    assert len(writer) == 1
    writer.take()
    assert len(writer) == 0


def test_header_with_fields_of_a_later_version_is_read() -> None:
    raw = msgspec.msgpack.encode([2, DATA, "a", "b", 1, 5, 9, False, [1], [4], "later"])
    header = decode_header(raw)
    assert header is not None
    assert (header.seq, header.sizes) == (5, (4,))


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\xff" * 40, b"\xa3abc"])
def test_corrupt_header_is_none(raw: bytes) -> None:
    assert decode_header(raw) is None


def test_corrupt_greeting_is_none() -> None:
    assert decode_greeting([b"header"]) is None
    assert decode_greeting([b"header", b"\xc1"]) is None


def faulty(change: str) -> tuple[Header, list[bytes]]:
    header, parts = batch_parts(MESSAGES[:3])
    counts, sizes = header.frames, header.sizes
    if change == "no body":
        return header, parts[:1]
    if change == "unknown message":
        return header, [parts[0], msgspec.msgpack.encode([["Nonsense", 1]]), parts[2]]
    if change == "body cut":
        return header, [parts[0], parts[1][:-1], parts[2]]
    if change == "frame missing":
        return header, parts[:-1]
    if change == "frame too many":
        return header, [*parts, b"more"]
    if change == "packed too long":
        return header, [*parts[:2], parts[2] + b"!"]
    if change == "counts do not add up":
        return msgspec.structs.replace(header, frames=(counts[0] + 1, *counts[1:])), parts
    if change == "negative count":
        return msgspec.structs.replace(header, frames=(3, -1, 2)), parts
    if change == "negative size":
        return msgspec.structs.replace(header, sizes=(-1, *sizes[1:])), parts
    assert change == "large frame is not as long as said"
    return msgspec.structs.replace(header, sizes=(PACK_BYTES * 9, *sizes[1:])), parts


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("no body", Fault.BODY),
        ("unknown message", Fault.BODY),
        ("body cut", Fault.BODY),
        ("frame missing", Fault.FRAMES),
        ("frame too many", Fault.FRAMES),
        ("packed too long", Fault.FRAMES),
        ("counts do not add up", Fault.FRAMES),
        ("negative count", Fault.FRAMES),
        ("negative size", Fault.FRAMES),
        ("large frame is not as long as said", Fault.FRAMES),
    ],
)
def test_a_corrupt_batch_is_a_fault(change: str, fault: Fault) -> None:
    header, parts = faulty(change)
    assert decode_batch(header, parts) is fault


def test_random_bytes_never_raise() -> None:
    rng = random.Random(7)
    header, parts = batch_parts(MESSAGES)
    for _ in range(3000):
        spoilt = [bytearray(part[:200]) for part in parts]
        victim = spoilt[rng.randrange(len(spoilt))]
        for _ in range(rng.randrange(1, 4)):
            victim[rng.randrange(len(victim))] = rng.randrange(256)
        read = decode_header(bytes(spoilt[0]))
        decode_batch(read or header, [bytes(part) for part in spoilt])
