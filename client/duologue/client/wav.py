"""PCM16 WAV files, as a client reads and writes them."""

from __future__ import annotations

import wave
from pathlib import Path


class BadWav(ValueError):
    """The file is no PCM16 WAV, or an empty one; the message says what it is."""


def read_pcm16_wav(path: str | Path) -> tuple[bytes, int]:
    """Mono PCM16 (the first channel) and its rate in Hz. Raises BadWav, or OSError if it cannot be read."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise BadWav(f"{path} is not a readable WAV file: {str(error) or 'it is cut short'}") from None
    if not data:
        raise BadWav(f"{path} holds no sound")
    if width != 2:
        raise BadWav(f"{path} has {8 * width}-bit samples; 16-bit PCM is needed")
    if channels > 1:
        frames = memoryview(data[: len(data) // (2 * channels) * 2 * channels]).cast("h")
        data = frames[::channels].tobytes()
    return data, rate


def write_pcm16_wav(path: str | Path, pcm: bytes, rate_hz: int) -> None:
    """Write mono PCM16."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(pcm)
