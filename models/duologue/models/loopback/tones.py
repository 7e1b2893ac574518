"""The tone of a session, unit by unit, with a phase that never breaks.

Audio unit n of a session holds the samples n * unit .. (n + 1) * unit of one endless sine: where it starts
follows from n alone, so nothing is kept of a session and a unit that is made again is the same.
"""

from __future__ import annotations

from collections import OrderedDict
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

LEVEL: Final = 0.3 * 32767
MAX_TONES: Final = 64
MAX_CACHED_BYTES: Final = 128 * 1024
"""Kept of one tone: a pitch with few periods to the unit repeats after a few units."""


class _Tone:
    """One pitch: the unit that starts with phase 0, the one a quarter later, and finished units."""

    def __init__(self, hz: float, samples: int, rate_hz: int) -> None:
        periods = Fraction(str(hz)) * samples / rate_hz
        self.cycle = periods.denominator
        """After so many units the phase is that of the first one again."""
        self.turns_per_unit = periods % 1
        angle = (2 * np.pi * hz / rate_hz) * np.arange(samples)
        self.sine: npt.NDArray[np.float64] = LEVEL * np.sin(angle)
        self.cosine: npt.NDArray[np.float64] = LEVEL * np.cos(angle)
        self.finished: dict[int, bytes] = {}
        self.keeps = self.cycle * samples * 2 <= MAX_CACHED_BYTES

    def unit(self, n: int) -> bytes:
        place = n % self.cycle
        done = self.finished.get(place)
        if done is None:
            phase = 2 * np.pi * float(place * self.turns_per_unit % 1)
            wave = np.cos(phase) * self.sine + np.sin(phase) * self.cosine
            done = np.rint(wave).astype("<i2").tobytes()
            if self.keeps:
                self.finished[place] = done
        return done


class ToneBank:
    """The tones of all sessions of an engine; at most `MAX_TONES` are kept, the longest unused one goes."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._tones: OrderedDict[tuple[float, int], _Tone] = OrderedDict()

    def unit(self, hz: float, n: int, samples: int) -> bytes:
        """Audio unit `n` of a session whose tone is `hz`, so many samples long: PCM16 little-endian."""
        key = (hz, samples)
        tone = self._tones.get(key)
        if tone is None:
            tone = self._tones[key] = _Tone(hz, samples, self._rate_hz)
            if len(self._tones) > MAX_TONES:
                self._tones.popitem(last=False)
        else:
            self._tones.move_to_end(key)
        return tone.unit(n)
