"""How late the event loop is, and how much memory the process holds.

A timer that comes late says that something held the loop. `on_stall` is told of gaps longer than
`stall_s`: after one, a process re-reads who it still is before it acts on what it believes of others.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Callable
from typing import Final

from duologue.runtime.grid import next_on_grid

_STATM: Final = "/proc/self/statm"
_PAGE_BYTES: Final = resource.getpagesize()


class LoopLagProbe:
    """`observe` gets every lag, in seconds; `on_stall` those longer than `stall_s`."""

    def __init__(
        self,
        observe: Callable[[float], None],
        *,
        on_stall: Callable[[float], None] | None = None,
        interval_s: float = 0.25,
        stall_s: float = 1.0,
    ) -> None:
        self._observe = observe
        self._on_stall = on_stall
        self._interval_s, self._stall_s = interval_s, stall_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = next_on_grid(loop.time(), self._interval_s)
        self._timer = loop.call_at(due, self._beat, loop, due)

    def _beat(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        lag = max(0.0, loop.time() - due)
        self._arm(loop)
        self._observe(lag)
        if lag > self._stall_s and self._on_stall is not None:
            self._on_stall(lag)


def rss_bytes() -> int:
    """Resident memory of this process; its peak where the system does not tell the present."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def cpu_seconds() -> float:
    """User and system time of this process."""
    times = os.times()
    return times.user + times.system
