"""Whether a unit of sound looks like speech: by its level. Nothing cleverer belongs into a test model."""

from __future__ import annotations

from typing import Final

import numpy as np

from duologue.models.loopback.heads import KNOWN, SPEECH

SILENCE_RMS: Final = 0.01


def looks_like_speech(flags: int, pcm: bytes) -> bool:
    """The session's own verdict where it has one, else the level. `pcm`: float32 little-endian, mono."""
    if flags & KNOWN:
        return bool(flags & SPEECH)
    samples = np.frombuffer(pcm, dtype="<f4")
    return bool(samples.size) and float(samples @ samples) > SILENCE_RMS * SILENCE_RMS * samples.size
