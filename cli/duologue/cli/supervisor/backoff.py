"""How long a crashed process waits before it is started again. Time is an argument."""

from __future__ import annotations


class Backoff:
    """Doubles from `first_s` to `most_s`; a life of `healthy_s` forgives all that came before."""

    def __init__(self, first_s: float = 0.2, most_s: float = 10.0, healthy_s: float = 30.0) -> None:
        self._first_s, self._most_s, self._healthy_s = first_s, most_s, healthy_s
        self._next_s = first_s
        self.crashes = 0

    def after(self, lived_s: float) -> float:
        """The pause after a life of `lived_s` seconds."""
        if lived_s >= self._healthy_s:
            self._next_s, self.crashes = self._first_s, 0
        pause_s = self._next_s
        self._next_s = min(self._next_s * 2, self._most_s)
        self.crashes += 1
        return pause_s
