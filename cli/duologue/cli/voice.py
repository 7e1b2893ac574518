"""A voice for people without a microphone: sentences as sound, by the cascade's own speech synthesis."""

from __future__ import annotations

from duologue.models.cascade.voices import RENDERINGS, Rendering, say

RATE_HZ = 16_000


def spoken(text: str, rendering: Rendering = RENDERINGS[0]) -> bytes:
    """Mono PCM16 at 16 kHz. Raises PipelineError if the voice is not installed."""
    return (say(text, rendering).clip(-1, 1) * 32767).astype("<i2").tobytes()
