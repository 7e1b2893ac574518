"""The synthesiser: text in, sound out, with the time at which each word ends. Blocking, for one thread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hibari import Hibari

from duologue.hearing.mel import Floats
from duologue.models.cascade.chunks import Spoken, word_ends
from duologue.models.cascade.settings import VOICE_RATE_HZ

_SILENCE = 0.01
"""Of the peak: under it a sample is not yet or not any more voice."""
LEAD_MS = 30
TAIL_MS = {".": 260, "!": 260, "?": 260, "…": 260, ",": 140, ";": 160, ":": 160}
"""What stays of the silence behind a clause, by its last character; 80 behind any other."""
_TAIL_MS = 80


class Voice:
    """The voice of one process."""

    def __init__(self, model: Path, threads: int) -> None:
        self._hibari = Hibari(voice="heart", model=str(model), threads=threads)

    def say(self, text: str, speed: float) -> Spoken:
        """Nothing if there is nothing to be said in the text."""
        sound = np.asarray(self._hibari(text, speed=speed, seed=0), np.float32)
        sound, voiced = trim(sound, _tail_ms(text))
        if not len(sound):
            return Spoken(b"", ())
        pcm = (np.clip(sound, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
        return Spoken(pcm, tuple(word_ends(text, voiced[0], voiced[1])))


def trim(sound: Floats, tail_ms: int) -> tuple[Floats, tuple[int, int]]:
    """Without most of the silence around it; and where the voice begins and ends in what is left."""
    loud = np.flatnonzero(np.abs(sound) > _SILENCE * np.abs(sound).max()) if len(sound) else np.zeros(0, int)
    if not len(loud):
        return sound[:0], (0, 0)
    per_ms = VOICE_RATE_HZ // 1000
    first, last = int(loud[0]), int(loud[-1]) + 1
    start = max(0, first - LEAD_MS * per_ms)
    kept = sound[start : last + tail_ms * per_ms]
    missing = last + tail_ms * per_ms - start - len(kept)
    if missing > 0:
        kept = np.concatenate((kept, np.zeros(missing, np.float32)))
    return kept, (first - start, last - start)


def _tail_ms(text: str) -> int:
    return TAIL_MS.get(text.rstrip("\"'”’) ")[-1:], _TAIL_MS)
