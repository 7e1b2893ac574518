"""The sound that a session's ears keep, by session input time; and what can be told of it without a model."""

from __future__ import annotations

from collections import deque

import numpy as np

from duologue.hearing.mel import RATE, Floats

_PER_MS = RATE // 1000
_WINDOW = 512
HUM_FROM_HZ = 600
HUM_SHARE = 0.06
"""A hum has less than this share of its energy above `HUM_FROM_HZ`; vowels have 0.1 and more."""


def samples(pcm: bytes) -> Floats:
    """The frame of a unit. Raises ValueError if it is no float32."""
    return np.frombuffer(pcm, "<f4")


class SoundBuffer:
    """Pieces in order. A gap in time is left out, not filled."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, Floats]] = deque()
        self._bytes = 0

    @property
    def state_bytes(self) -> int:
        return self._bytes

    def append(self, start_ms: int, sound: Floats) -> None:
        self._pieces.append((start_ms, sound))
        self._bytes += sound.nbytes

    def forget(self, before_ms: int) -> None:
        while self._pieces and self._end(self._pieces[0]) <= before_ms:
            self._bytes -= self._pieces.popleft()[1].nbytes

    def span(self, from_ms: int, to_ms: int) -> Floats:
        """What there is between two times."""
        cuts = []
        for start, sound in self._pieces:
            low = max(0, (from_ms - start) * _PER_MS)
            high = min(len(sound), (to_ms - start) * _PER_MS)
            if low < high:
                cuts.append(sound[low:high])
        return np.concatenate(cuts) if cuts else np.zeros(0, np.float32)

    @staticmethod
    def _end(piece: tuple[int, Floats]) -> int:
        return piece[0] + len(piece[1]) // _PER_MS


def is_hum(sound: Floats) -> bool:
    """Whether the voiced part of a short sound is a hum with closed lips, as "mm-hm" is."""
    if len(sound) < 2 * _WINDOW:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(sound, _WINDOW)[:: _WINDOW // 2] * np.hanning(_WINDOW)
    energy = np.square(windows).sum(axis=1)
    loud = windows[energy > 0.02 * energy.max()] if energy.max() > 0 else windows[:0]
    if not len(loud):
        return False
    power = (np.abs(np.fft.rfft(loud, axis=1)) ** 2).sum(axis=0)
    hertz = np.fft.rfftfreq(_WINDOW, 1 / RATE)
    return float(power[hertz > HUM_FROM_HZ].sum()) < HUM_SHARE * float(power[hertz > 80].sum())
