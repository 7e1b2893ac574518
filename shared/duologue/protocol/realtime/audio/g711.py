"""G.711 by table, bit for bit as ITU-T G.711 has it."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]
Int16 = NDArray[np.int16]


@cache
def _to_table(law: str) -> NDArray[np.uint8]:
    """Code by sample, indexed by the sample's 16 bits taken as unsigned."""
    samples = np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.int32)
    return _ulaw_codes(samples) if law == "g711_ulaw" else _alaw_codes(samples)


@cache
def _from_table(law: str) -> Int16:
    codes = np.arange(256, dtype=np.int32)
    return (_ulaw_samples(codes) if law == "g711_ulaw" else _alaw_samples(codes)).astype(np.int16)


@cache
def _from_table_f32(law: str) -> Samples:
    return _from_table(law).astype(np.float32) / np.float32(32768)


def g711_encode(samples: Int16, law: str) -> bytes:
    return _to_table(law)[samples.view(np.uint16)].tobytes()


def g711_decode(data: bytes | memoryview, law: str) -> Samples:
    samples: Samples = _from_table_f32(law)[np.frombuffer(data, np.uint8)]
    return samples


def _segment(magnitude: NDArray[np.int32], first_end: int) -> NDArray[np.int32]:
    """Which of the 8 segments a magnitude is in; the first ends at `first_end`, each is twice as long."""
    ends = np.array([((first_end + 1) << k) - 1 for k in range(8)], dtype=np.int32)
    return np.minimum(np.searchsorted(ends, magnitude), 7).astype(np.int32)


def _ulaw_codes(samples: NDArray[np.int32]) -> NDArray[np.uint8]:
    """14 bits, bias 33; the code is inverted."""
    linear = samples >> 2
    magnitude = np.minimum(np.abs(linear), 8158) + 33
    segment = _segment(magnitude, 0x3F)
    code = (segment << 4) | ((magnitude >> (segment + 1)) & 0x0F)
    codes: NDArray[np.uint8] = (code ^ np.where(linear < 0, 0x7F, 0xFF)).astype(np.uint8)
    return codes


def _ulaw_samples(codes: NDArray[np.int32]) -> NDArray[np.int32]:
    code = ~codes & 0xFF
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code >> 4) & 7)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude)


def _alaw_codes(samples: NDArray[np.int32]) -> NDArray[np.uint8]:
    """13 bits; every second bit of the code is inverted."""
    linear = samples >> 3
    magnitude = np.where(linear < 0, -linear - 1, linear)
    segment = _segment(magnitude, 0x1F)
    code = (segment << 4) | ((magnitude >> np.maximum(segment, 1)) & 0x0F)
    codes: NDArray[np.uint8] = (code ^ np.where(linear < 0, 0x55, 0xD5)).astype(np.uint8)
    return codes


def _alaw_samples(codes: NDArray[np.int32]) -> NDArray[np.int32]:
    code = codes ^ 0x55
    segment, mantissa = (code >> 4) & 7, (code & 0x0F) << 4
    magnitude = np.where(segment > 0, (mantissa + 0x108) << np.maximum(segment - 1, 0), mantissa + 8)
    return np.where(code & 0x80, magnitude, -magnitude)
