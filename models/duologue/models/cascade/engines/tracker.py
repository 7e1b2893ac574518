"""From the detector's probabilities to speech: the hysteresis of one session. Pure, times in samples.

Rule 1. Speech begins with `min_speech` of voiced frames in a row, and at the first of them.
Rule 2. It stops with `pause` of unbroken silence: one frame over the threshold starts that count again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from duologue.hearing.voice_activity import FRAME
from duologue.models.cascade.settings import RATE_HZ, Perception

FRAME_MS = FRAME * 1000 / RATE_HZ


class Tracker:
    """`onset` and `voice_end` are samples of session input time, -1 before there was any."""

    def __init__(self, settings: Perception) -> None:
        self._threshold = settings.threshold
        self._release = settings.release
        self._onset_frames = max(1, ceil(settings.min_speech_ms / FRAME_MS))
        self._pause_frames = max(1, ceil(settings.pause_ms / FRAME_MS))
        self._voiced = 0
        self._quiet = 0
        self.speaking = False
        self.onset = -1
        self.voice_end = -1

    def follow(self, start: int, probabilities: Sequence[float]) -> bool:
        """Frames in a row, the first at sample `start`. True if speech began among them."""
        began = False
        for i, probability in enumerate(probabilities):
            end = start + (i + 1) * FRAME
            if probability >= self._threshold:
                self._quiet = 0
                self._voiced += 1
                if not self.speaking and self._voiced >= self._onset_frames:
                    self.speaking = began = True
                    self.onset = end - self._voiced * FRAME
                if self.speaking:
                    self.voice_end = end
                continue
            self._voiced = 0
            if self.speaking:
                if self._quiet or probability < self._release:
                    self._quiet += 1
                if self._quiet >= self._pause_frames:
                    self.speaking, self._quiet = False, 0
        return began
