"""Sound for the check: made, the same for the same seed, or read from a WAV file. Units are float32 at any rate."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duologue.model.pipeline import PipelineError

Floats = npt.NDArray[np.float32]
_SPEECH_S, _PAUSE_S = 0.7, 0.5


def made(seed: int, seconds: float, rate_hz: int) -> Floats:
    """Syllables of a buzzing voice with pauses between phrases. No words, but loud, voiced and never twice the same."""
    random = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    pitch = 90 + 12 * (seed % 8) + 15 * np.sin(2 * np.pi * 0.7 * t + seed)
    phase = 2 * np.pi * np.cumsum(pitch) / rate_hz
    voice = sum(np.sin(k * phase) / k for k in range(1, 9))
    syllables = np.clip(np.sin(2 * np.pi * 4.0 * t + seed), 0, 1)
    phrases = ((t + 0.1 * seed) % (_SPEECH_S + _PAUSE_S)) < _SPEECH_S
    sound = 0.15 * voice * syllables * phrases + 0.0005 * random.standard_normal(t.size)
    return sound.astype("<f4")


def read(path: Path, rate_hz: int) -> Floats:
    """A mono PCM16 WAV file at this rate. Raises PipelineError."""
    try:
        with wave.open(str(path)) as file:
            if file.getnchannels() != 1 or file.getsampwidth() != 2 or file.getframerate() != rate_hz:
                raise PipelineError(f"{path}: check.sound is mono 16 bit PCM at {rate_hz} Hz, the model's input rate")
            pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    except (wave.Error, EOFError) as error:
        raise PipelineError(f"{path}: {error}") from None
    return (pcm / 32768).astype("<f4")


def cut(sound: Floats, unit_ms: int, rate_hz: int, units: int) -> list[bytes]:
    """So many units of it; silence after its end."""
    size = unit_ms * rate_hz // 1000
    padded = np.zeros(units * size, "<f4")
    part = sound[: padded.size]
    padded[: part.size] = part
    return [padded[i * size : (i + 1) * size].tobytes() for i in range(units)]
