"""Sound that clients send is taken in by all sockets at the same time, a few milliseconds late at most.

A process that is woken for one frame pays several times what the frame costs, and so does every process behind
it. Frames of all sockets that arrive within one window are worked off in one turn of the loop: they leave as one
message to each shard, and stay one batch through the stages and back.

Rule 1. The window grows with the square of the company, the other sockets that have sent sound of late, until it is as
        long as it may be at `COMPANY`. Few sessions leave the machine idle, and hardly wait; many would keep it awake.
        One alone never waits.
Rule 2. A frame that comes after a quiet window is not kept.
Rule 3. Only media waits (see `wire`): whatever else a client says is heard at once, after what it sent before.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

_log = logging.getLogger("duologue.gateway")

COMPANY: Final = 32
"""Other sockets, from which on the window is as long as it gets."""
CENSUS_S: Final = 0.25
"""How often the sockets that send are counted."""


class Keeper(Protocol):
    """A socket that has kept something."""

    def work_off(self) -> None:
        """Take in what was kept, in order."""

    def give_up(self) -> None:
        """`work_off` has failed: a fault of ours."""


class Gathering:
    """Of one process."""

    def __init__(self, gather_s: float) -> None:
        """`gather_s`: the longest window; 0: nothing waits."""
        self._gather_s = gather_s
        self.window_s = 0.0
        self._keepers: dict[Keeper, None] = {}
        self._heard: set[Keeper] = set()
        """Who has kept something since the last census."""
        self._counted_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._gathered_at = float("-inf")

    def add(self, keeper: Keeper) -> None:
        """It has kept something: have it worked off soon, or now."""
        self._keepers[keeper] = None
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        due = self._gathered_at + self.window_s
        if due <= loop.time():
            self._work_off()
        else:
            self._timer = loop.call_at(due, self._work_off)

    def _work_off(self) -> None:
        self._timer = None
        self._gathered_at = now = asyncio.get_running_loop().time()
        keepers, self._keepers = self._keepers, {}
        if now - self._counted_at >= 2 * CENSUS_S:
            self._heard.clear()  # who sent before a silence is no company
        self._heard.update(keepers)
        if now - self._counted_at >= CENSUS_S:
            self._counted_at = now
            self.window_s = self._gather_s * min(1.0, (len(self._heard) - 1) / COMPANY) ** 2
            self._heard.clear()
        for keeper in keepers:
            try:
                keeper.work_off()
            except Exception:
                _log.exception("a socket is dropped: a fault of this gateway")
                keeper.give_up()
