"""A reference voice, as a client sends it or a file holds it: a short WAV. Pure.

Rule 1. A voice is sent, never fetched: a URL of another kind than `data:` is refused, and so is a path.
"""

from __future__ import annotations

import base64
import binascii
import io
import wave

MIN_RATE_HZ, MAX_RATE_HZ = 8_000, 96_000
MIN_S = 0.5


class BadVoice(ValueError):
    """What is wrong with it."""


def sent_voice(ref_audio: str, max_s: float) -> tuple[bytes, int]:
    """Mono PCM16 and its rate, of a `data:` URL or of plain base64. Raises BadVoice."""
    head, comma, body = ref_audio.partition(",")
    if head.startswith("data:") and comma:
        if not head.endswith(";base64"):
            raise BadVoice("a data URL of a voice is base64")
    elif "://" in ref_audio[:64]:
        raise BadVoice("a voice is sent, not fetched: a data URL or base64 of a WAV file")
    else:
        body = ref_audio
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise BadVoice("a voice is a WAV file in base64") from None
    return wav_voice(data, max_s)


def wav_voice(data: bytes, max_s: float) -> tuple[bytes, int]:
    """Mono PCM16 of at most `max_s`, and its rate, of a WAV file of 16-bit samples. Raises BadVoice."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            if width != 2 or channels != 1 or not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
                raise BadVoice("a voice is a mono WAV file of 16-bit samples at 8 to 96 kHz")
            pcm = file.readframes(int(max_s * rate))
    except (wave.Error, EOFError) as error:
        raise BadVoice(f"a voice is a WAV file: {error}") from None
    pcm = pcm[: len(pcm) & ~1]
    if len(pcm) < 2 * MIN_S * rate:
        raise BadVoice(f"a voice has at least {MIN_S:g} s")
    return pcm, rate
