"""A reference voice as the model hears it and as the vocoder reads it. Needs soxr."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soxr

from duologue.models.minicpmo_4_5.options import INPUT_RATE_HZ

_STEP = INPUT_RATE_HZ // 10


@dataclass(frozen=True)
class Voice:
    """`heard`: float32 at 16 kHz, whole tenths of a second."""

    heard: npt.NDArray[np.float32]


def voice_of(pcm: bytes, rate_hz: int) -> Voice:
    """Of mono PCM16 at any rate."""
    sound = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768.0
    if rate_hz != INPUT_RATE_HZ:
        sound = soxr.resample(sound, rate_hz, INPUT_RATE_HZ).astype(np.float32)
    return Voice(sound[: len(sound) - len(sound) % _STEP])


def write_wav(path: Path, voice: Voice) -> None:
    """A WAV file of 16-bit samples at 16 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(INPUT_RATE_HZ)
        file.writeframes((np.clip(voice.heard, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes())
