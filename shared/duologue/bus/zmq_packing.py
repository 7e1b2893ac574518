"""The leading parts of a multipart message in one ZeroMQ frame: [sizes][header][body][small frames] | large ...

Each frame of ZeroMQ costs a call on either side and work in both of its threads; copying a few KiB into one
frame costs a tenth of that.

Rule 1. What is large enough to be a part of its own (see `codec`) stays one: it is never copied.
Rule 2. Nothing that a peer sends raises: what cannot be taken apart comes out as no parts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from duologue.bus.link import Frame

_SIZES: Final = struct.Struct(">III")
_LEADING: Final = 3


def pack_parts(parts: Sequence[Frame]) -> list[Frame]:
    """The frames to send. `parts` starts with the header."""
    if len(parts) == 2:
        header, body = parts
        return [b"".join((_SIZES.pack(len(header), len(body), 0), header, body))]
    if len(parts) == 1:
        header = parts[0]
        return [b"".join((_SIZES.pack(len(header), 0, 0), header))]
    header, body, small = parts[:_LEADING]
    return [
        b"".join((_SIZES.pack(len(header), len(body), len(small) + 1), header, body, small)),
        *parts[_LEADING:],
    ]


def unpack_parts(frames: list[bytes]) -> list[bytes]:
    """The parts that were packed; empty if it was not `pack_parts` that made these frames."""
    first = frames[0]
    if len(first) < _SIZES.size:
        return []
    header, body, small = _SIZES.unpack_from(first)
    begin = _SIZES.size
    middle = begin + header
    end = middle + body
    if small:
        if end + small - 1 != len(first):
            return []
        return [first[begin:middle], first[middle:end], first[end:], *frames[1:]]
    if end != len(first) or len(frames) > 1:
        return []
    if body:
        return [first[begin:middle], first[middle:]]
    return [first[begin:]]
