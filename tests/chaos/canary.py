"""A tone for each session, such that nobody's sound can pass for another's.

Rule 1. All pitches are 0.37 of a turn beside a whole number of turns to the unit: a unit that is lost, doubled or moved
        breaks the sine. Between any two of them there is a whole number of turns, two at least: over one unit they
        do not leak into each other.
Rule 2. What a session may hear is known from its number alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

RATE_HZ: Final = 24_000
UNIT_SAMPLES: Final = RATE_HZ * 80 // 1000
_STEP_HZ: Final = RATE_HZ / UNIT_SAMPLES
_OFF: Final = 0.37
_LOWEST: Final = 24

Samples = npt.NDArray[np.float64]


def pitch(session: int) -> float:
    """Hz of session 0, 1, 2, ..."""
    return round(_STEP_HZ * (_LOWEST + 2 * session + _OFF), 3)


def samples_of(pcm: bytes) -> Samples:
    """PCM16 little-endian, as numbers."""
    return np.frombuffer(pcm, "<i2").astype(np.float64)


def breaks(samples: Samples, hz: float) -> list[int]:
    """The samples at which a tone does not go on as a sine of this pitch does: of a sine,
    x[n-1] + x[n+1] = 2 cos(w) x[n], up to rounding."""
    turn = 2 * np.cos(2 * np.pi * hz / RATE_HZ)
    error = np.abs(samples[:-2] + samples[2:] - turn * samples[1:-1])
    return [int(n) for n in np.flatnonzero(error > 4.0) + 1]


def levels(samples: Samples, pitches: tuple[float, ...]) -> Samples:
    """The amplitude of each pitch in these samples, as Goertzel's filter tells it (here as one product)."""
    found: Samples = np.abs(_turns(pitches, len(samples)) @ samples) * 2 / max(1, len(samples))
    return found


@lru_cache(maxsize=8)
def _turns(pitches: tuple[float, ...], count: int) -> npt.NDArray[np.complex128]:
    turns = np.outer(np.asarray(pitches), np.arange(count) / RATE_HZ)
    return np.exp(-2j * np.pi * turns)
