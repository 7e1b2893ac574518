"""When a model that never stops making frames is speaking, and when it is listening. SANS-I/O.

Moshi gives text and sound for every frame, mostly padding and near-silence, and says nothing of turns. So:

Rule 1. A frame with text, or loud enough, begins speech; the sound of every frame up to its end is heard.
Rule 2. So many frames without either end it: the turn ends with the last of them.
Rule 3. A hard stop hushes it: nothing is heard until it has paused as long as that, or too long has passed. The
        model itself is not told; it hears the user go on, and that is what makes it stop.
"""

from __future__ import annotations

from enum import Enum

from duologue.models.moshi.options import UNIT_MS, Talking


class Said(Enum):
    """What a frame is to the session."""

    LISTENING = "listening"
    SPEAKING = "speaking"
    ENDING = "ending"
    """The last frame of what was said."""


class Mouth:
    """One slot's. `frame` is called once for each frame, in order."""

    __slots__ = ("_hush_frames", "_hushed", "_loudness", "_pause_frames", "_quiet", "_speaking")

    def __init__(self, talking: Talking) -> None:
        self._loudness = talking.loudness
        self._pause_frames = -(-talking.pause_ms // UNIT_MS)
        self._hush_frames = -(-talking.hush_ms // UNIT_MS)
        self._speaking = False
        self._quiet = self._pause_frames
        """Frames in a row that were not speech."""
        self._hushed = 0
        """Frames for which it may yet stay hushed; 0: it is not."""

    @property
    def speaking(self) -> bool:
        """It is in the middle of something that the session hears."""
        return self._speaking

    def hush(self) -> None:
        """A hard stop. Of no effect on a model that is quiet already."""
        self._speaking = False
        self._hushed = 0 if self._quiet >= self._pause_frames else self._hush_frames

    def frame(self, *, text: bool, loudness: float) -> Said:
        """`text`: the frame has a token that is spoken. `loudness`: RMS of its sound, full scale 1."""
        spoken = text or loudness >= self._loudness
        self._quiet = 0 if spoken else min(self._quiet + 1, self._pause_frames)
        if self._hushed:
            self._hushed = 0 if self._quiet >= self._pause_frames else self._hushed - 1
            return Said.LISTENING
        if not self._speaking:
            self._speaking = spoken
            return Said.SPEAKING if spoken else Said.LISTENING
        if self._quiet >= self._pause_frames:
            self._speaking = False
            return Said.ENDING
        return Said.SPEAKING
