"""Time as a port: what a process reads, and what a test moves by hand."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod


class Clock(ABC):
    """Seconds."""

    @abstractmethod
    def monotonic(self) -> float:
        """Never goes back; no meaning beyond this process."""

    @abstractmethod
    def wall(self) -> float:
        """Since the epoch, for people and for `expires_at`. Never compared between hosts."""


class SystemClock(Clock):
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class ManualClock(Clock):
    """Moves only when told."""

    def __init__(self, monotonic: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("time does not go back")
        self._monotonic += seconds
        self._wall += seconds

    def set_wall(self, wall: float) -> None:
        """The host's clock is set: only wall time jumps."""
        self._wall = wall
