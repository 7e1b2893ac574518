"""Sound as chat servers send and take it: WAV files and bare samples. Pure."""

from __future__ import annotations

import struct
from typing import Final

_HEADER: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")


def write_wav(pcm: bytes, rate_hz: int) -> bytes:
    """A WAV file of mono PCM16."""
    size = len(pcm)
    return (
        _HEADER.pack(b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, rate_hz, rate_hz * 2, 2, 16, b"data", size) + pcm
    )


def read_sound(data: bytes, rate_hz: int) -> tuple[bytes, int]:
    """Mono PCM16 and its rate, of a WAV file or of bare samples at `rate_hz`. Sizes in a header that was written
    before its end was known are not believed. Raises ValueError."""
    if data[:4] != b"RIFF":
        return data, rate_hz
    at, rate = 12, 0
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        if name == b"fmt " and size >= 16 and at + 16 <= len(data):
            kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", data, at)
            if kind not in (1, 0xFFFE) or channels != 1 or bits != 16:
                raise ValueError("the sound is a WAV file, but not of mono 16-bit samples")
        elif name == b"data":
            if not rate:
                break
            whole = data[at : at + size]
            return whole[: len(whole) & ~1], rate
        at += size + (size & 1)
    raise ValueError("the sound is a WAV file without samples")
