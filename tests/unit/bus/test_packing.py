"""What travels in one ZeroMQ frame comes apart again; anything else is no message."""

from __future__ import annotations

import os

import pytest

from duologue.bus.link import Frame
from duologue.bus.zmq_packing import pack_parts, unpack_parts

pytestmark = pytest.mark.unit

PARTS: list[list[Frame]] = [
    [b"header"],
    [b"header", b"body"],
    [b"header", b"body", b"small"],
    [b"header", b"body", b""],
    [b"header", b"body", b"", b"large" * 9000],
    [b"header", b"body", b"small", bytearray(b"large"), memoryview(b"larger")],
]


@pytest.mark.parametrize("parts", PARTS)
def test_parts_come_back_as_they_were(parts: list[Frame]) -> None:
    assert unpack_parts([bytes(frame) for frame in pack_parts(parts)]) == [bytes(part) for part in parts]


@pytest.mark.parametrize("parts", PARTS)
def test_small_parts_share_one_frame_and_large_ones_are_not_copied(parts: list[Frame]) -> None:
    frames = pack_parts(parts)
    assert len(frames) == max(1, len(parts) - 2)
    assert all(frame is part for frame, part in zip(frames[1:], parts[3:], strict=True))


@pytest.mark.parametrize("parts", PARTS)
def test_what_was_cut_or_grew_is_no_message(parts: list[Frame]) -> None:
    first, *rest = [bytes(frame) for frame in pack_parts(parts)]
    assert unpack_parts([first[:-1], *rest]) == []
    assert unpack_parts([first + b"!", *rest]) == []
    if len(parts) < 3:
        assert unpack_parts([first, b"more"]) == []


def test_rubbish_is_no_message() -> None:
    for size in range(60):
        unpack_parts([os.urandom(size)])
    assert unpack_parts([b""]) == []
    assert unpack_parts([b"\xff" * 40]) == []
