"""The store breaker. SANS-I/O: the time is an argument, in seconds.

Closed: everybody waits for the store, up to the deadline. Open: nobody waits; one caller per probe interval
may try. Any answer closes it. One per process and server, shared by all sessions. Who comes late to look at the
clock (`looked`) has not read what came meanwhile: for `READ_S` from then on it judges nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LATE_S: Final = 0.1
READ_S: Final = 0.03


class StoreBreaker:
    """`deadline_s`: how long a wait may last before it opens the breaker."""

    def __init__(self, *, deadline_s: float = 0.25, probe_s: float = 0.1) -> None:
        self.deadline_s = deadline_s
        self.probe_s = probe_s
        self.open = False
        self.openings = 0
        """For the metrics."""
        self.on_open: Callable[[], None] | None = None
        """Called at each opening: somebody should say so."""
        self._next_probe = 0.0
        self._reads_until = float("-inf")

    def looked(self, due: float, now: float) -> None:
        """The process looks what has waited for too long. It meant to at `due`."""
        if now - due > LATE_S:
            self._reads_until = now + READ_S

    def judge(self, since: float, now: float) -> None:
        """Something has been waited for since then, and still is."""
        if now - since >= self.deadline_s and now >= self._reads_until:
            self.fail(now)

    def fail(self, now: float) -> None:
        """A wait has passed the deadline."""
        if not self.open:
            self.open = True
            self.openings += 1
            self._next_probe = now + self.probe_s
            if self.on_open is not None:
                self.on_open()

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
