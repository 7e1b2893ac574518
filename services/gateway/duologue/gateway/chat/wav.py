"""WAV files in and out: 16-bit PCM, which is what clients of chat completions send and ask for. SANS-I/O."""

from __future__ import annotations

import io
import wave
from array import array

import msgspec

from duologue.protocol.duplex import RealtimeProtocolError
from duologue.protocol.realtime.formats import MAX_RATE_HZ, MIN_RATE_HZ

MAX_CHANNELS = 2


class Sound(msgspec.Struct, frozen=True):
    """Mono int16 little-endian PCM."""

    pcm: bytes
    rate_hz: int


def read_wav(data: bytes, param: str) -> Sound:
    """The sound of a file; stereo is averaged. Raises `bad_audio` or `unsupported_audio_format`, naming `param`."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            channels, width, rate_hz = file.getnchannels(), file.getsampwidth(), file.getframerate()
            pcm = file.readframes(file.getnframes())
    except wave.Error as error:
        raise RealtimeProtocolError("unsupported_audio_format", f"this WAV file: {error}", param=param) from None
    except (EOFError, RuntimeError):  # it ends too early, or a chunk is longer than the file
        raise RealtimeProtocolError("bad_audio", "this is no whole WAV file", param=param) from None
    if width != 2 or not 1 <= channels <= MAX_CHANNELS:
        what = f"{8 * width} bits, {channels} channels"
        raise RealtimeProtocolError("unsupported_audio_format", f"{what}: 16-bit mono or stereo is taken", param=param)
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        what = f"{rate_hz} Hz: {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz are taken"
        raise RealtimeProtocolError("unsupported_audio_format", f"this WAV file has {what}", param=param)
    whole = pcm[: len(pcm) // (2 * channels) * 2 * channels]
    return Sound(whole if channels == 1 else _mono(whole), rate_hz)


def _mono(pcm: bytes) -> bytes:
    samples = array("h", pcm)
    return array("h", [(left + right) // 2 for left, right in zip(samples[::2], samples[1::2], strict=True)]).tobytes()


def write_wav(pcm: bytes, rate_hz: int) -> bytes:
    """A whole mono file."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(pcm)
    return out.getvalue()
