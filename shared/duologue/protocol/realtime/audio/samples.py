"""Bytes of a wire format to samples and back.

Inside, sound is mono float32 in -1..1, or int16 as models make it; 32768 steps make 1, both ways, so that
int16 survives the round trip bit for bit.
"""

from __future__ import annotations

import struct
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from duologue.protocol.realtime.audio.g711 import Int16, Samples, g711_decode, g711_encode
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.formats import G711, AudioFormat

_STEP = np.float32(1 / 32768)


def decode_samples(data: bytes | bytearray | memoryview, name: str) -> Samples:
    """Samples of whole frames of `name` (not wav). Raises `bad_audio` if a float is not finite; one beyond -1..1 is
    clipped, as the other formats have it."""
    if name == "pcm16":
        made: Samples = np.multiply(np.frombuffer(data, "<i2"), _STEP, dtype=np.float32)
        return made
    if name in G711:
        return g711_decode(memoryview(data), name)
    samples = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(samples).all():
        raise RealtimeProtocolError("bad_audio", "audio holds a sample that is not finite", param="audio")
    return np.clip(samples, -1, 1, out=samples)  # 3e38 is finite, until a filter adds two of it


def to_int16(samples: NDArray[np.float32] | Int16) -> Int16:
    """Rounded and clipped."""
    if samples.dtype == np.int16:
        return samples  # type: ignore[return-value]
    steps = samples * np.float32(32768)
    np.rint(steps, out=steps)
    return steps.clip(-32768, 32767, out=steps).astype(np.int16)


def to_float32(samples: NDArray[np.float32] | Int16) -> Samples:
    if samples.dtype == np.float32:
        return samples  # type: ignore[return-value]
    return samples.astype(np.float32) * _STEP


def encode_samples(samples: NDArray[np.float32] | Int16, to: AudioFormat) -> bytes:
    """Float32 or int16 samples, already at `to.rate`, as bytes of `to`; wav is one whole file."""
    if to.name == "pcm_f32le":
        return to_float32(samples).astype("<f4", copy=False).tobytes()
    pcm = to_int16(samples)
    if to.name in G711:
        return g711_encode(pcm, to.name)
    data = pcm.astype("<i2", copy=False).tobytes()
    return wav_header(len(data), to.rate) + data if to.name == "wav" else data


def wav_header(size: int, rate: int) -> bytes:
    """The 44 bytes before `size` bytes of mono 16-bit PCM."""
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        36 + size,
        b"WAVE",
        b"fmt ",
        16,
        1,
        1,
        rate,
        rate * 2,
        2,
        16,
        b"data",
        size,
    )


def rms(samples: NDArray[np.float32] | Int16) -> float:
    """Root mean square, 0 of nothing; of int16 as if it were float."""
    if not len(samples):
        return 0.0
    sound = to_float32(samples)
    return sqrt(float(sound.dot(sound)) / len(sound))
