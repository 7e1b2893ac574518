"""How many clients a gateway lets in each second, and when the others are to come again. SANS-I/O.

When a gateway dies, its clients come back all at once, and each of them costs a handshake and a script in the store.
What is beyond the rate is refused before the WebSocket is accepted, which costs next to nothing.

Rule 1. A bucket of `burst` that fills with `per_s`: single connections and small crowds are let in at once.
Rule 2. A refused client is given a time by chance within the time that the crowd takes to be let in, so that it does
        not come back as one. Whoever ignores that is only refused again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

LEAST_MS: Final = 500
MOST_MS: Final = 30_000
BURST_S: Final = 2.0
"""The bucket holds what comes in so many seconds."""


class ConnectRate:
    """`draw(a, b)`: a number between the two."""

    def __init__(self, per_s: float, draw: Callable[[float, float], float] = random.uniform) -> None:
        self._per_s = per_s
        self._burst = max(per_s * BURST_S, 1.0)
        self._draw = draw
        self._left = self._burst
        self._at = float("-inf")
        self._crowd = 0.0
        """About how many were refused and have not been let in since."""

    def take(self, now: float) -> int:
        """0: one more is let in. Else so many milliseconds from now it may try again."""
        gained = min((now - self._at) * self._per_s, self._burst)
        self._at = now
        self._crowd = max(self._crowd - gained, 0.0)
        self._left = min(self._left + gained, self._burst)
        if self._left >= 1.0:
            self._left -= 1.0
            return 0
        self._crowd += 1.0
        until_ms = min(LEAST_MS + self._crowd / self._per_s * 1000, MOST_MS)
        return round(self._draw(LEAST_MS, max(until_ms, 2 * LEAST_MS)))
