"""The store breaker. SANS-I/O: the time is an argument, in seconds.

Closed: everybody waits for the store, up to the deadline. Open: nobody waits; one caller per probe interval
may try. Any answer closes it. One per process and server, shared by all sessions.
"""

from __future__ import annotations


class StoreBreaker:
    """`deadline_s`: how long a wait may last before it opens the breaker."""

    def __init__(self, *, deadline_s: float = 0.25, probe_s: float = 0.1) -> None:
        self.deadline_s = deadline_s
        self.probe_s = probe_s
        self.open = False
        self.openings = 0
        """For the metrics."""
        self._next_probe = 0.0

    def fail(self, now: float) -> None:
        """A wait has passed the deadline."""
        if not self.open:
            self.open = True
            self.openings += 1
            self._next_probe = now + self.probe_s

    def answered(self) -> None:
        """The store has answered somebody."""
        self.open = False

    def may_try(self, now: float) -> bool:
        """Whether to call the store now. While open, True takes the turn of this interval."""
        if not self.open:
            return True
        if now < self._next_probe:
            return False
        self._next_probe = now + self.probe_s
        return True
