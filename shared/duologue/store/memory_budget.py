"""How full the servers of the store are, and what follows: SANS-I/O, told of figures, asked for two answers.

Rule 1. From `refuse_from` of a server's budget on no new session is let in (`full`), until it is `REOPEN` below that
        again. A session that lives goes on, whatever is said here.
Rule 2. While the journals' server uses more than `trim_from`, the limit of every journal goes down, so that the largest
        lose their oldest events first and those below it nothing: at once to what `ceiling` says, and then by what is
        used too much. Below that share it goes up again, slowly near it, so that it settles there. It is never below
        an equal share for each as long as new sessions are let in, and never below `LEAST_BYTES`.
Rule 3. A server without a budget is never full.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

LEAST_BYTES: Final = 256 * 1024
"""No journal is cut shorter than this for want of memory: some 3 s of sound."""
REOPEN: Final = 0.05
STEPS: Final = 128
"""In so many looks a limit goes up again, at the latest."""
PULL: Final = 0.03
"""Of the way to the fair share, at each step down: processes that did not start together come to the same limit."""


class ServerMemory(msgspec.Struct, frozen=True):
    """What one server holds, in bytes, and the most that it may; 0: it says none."""

    used: int
    limit: int = 0


class MemoryShares(msgspec.Struct, frozen=True):
    """Shares of the budget: what each server says that it may hold, or `budget` (bytes; 0: none) if that is less."""

    budget: int = 0
    trim_from: float = 0.70
    refuse_from: float = 0.85

    def of(self, server: ServerMemory) -> int:
        """The budget of this server; 0: it has none."""
        return min((limit for limit in (self.budget, server.limit) if limit), default=0)

    def used(self, server: ServerMemory) -> float:
        """The share that is used; 0 without a budget."""
        budget = self.of(server)
        return server.used / budget if budget else 0.0


class MemoryBudget:
    """Of one process. `max_bytes`: the limit of a journal while there is room."""

    def __init__(self, max_bytes: int, shares: MemoryShares | None = None) -> None:
        self._shares = shares or MemoryShares()
        self._max_bytes = max_bytes
        self.journal_limit = max_bytes
        """What one journal may hold now, in bytes."""
        self.used_ratio = 0.0
        """Of the fuller server; 0 as long as nothing is known."""
        self.full = False
        """No new session is to be let in."""

    def heard(self, journals_on: ServerMemory, others: Iterable[ServerMemory], journals: int) -> None:
        """The figures of now: of the server that holds the journals and of the others; how many journals there are."""
        shares = self._shares
        filled = shares.used(journals_on)
        self.used_ratio = max((filled, *(shares.used(server) for server in others)))
        self.full = self.used_ratio >= shares.refuse_from - (REOPEN if self.full else 0.0)
        self.journal_limit = self._limit(filled, shares.trim_from * shares.of(journals_on) / max(1, journals))

    def nothing_known(self) -> None:
        """No server says anything of its memory: there is no budget to keep."""
        self.journal_limit, self.used_ratio, self.full = self._max_bytes, 0.0, False

    def _limit(self, filled: float, fair: float) -> int:
        most, target, before = self._max_bytes, self._shares.trim_from, self.journal_limit
        if filled <= target:
            return min(most, before + most // STEPS + int(before * (target - filled)))
        least = min(LEAST_BYTES, most)
        fair = min(max(fair, least), most)
        lowest = fair if filled < self._shares.refuse_from else least
        limit = before * target / filled * (fair / before) ** PULL
        return int(max(lowest, min(limit, self._ceiling(filled, fair, least))))

    def _ceiling(self, filled: float, fair: float, least: float) -> float:
        """From `trim_from` to `refuse_from` it falls to the fair share, then, half way to the end, to the least:
        however fast the server fills, the journals that fill it are short before it is full."""
        trim, refuse = self._shares.trim_from, self._shares.refuse_from
        if filled < refuse:
            return _between(self._max_bytes, fair, (filled - trim) / (refuse - trim))
        last = (refuse + 1.0) / 2
        return _between(fair, least, (filled - refuse) / (last - refuse)) if filled < last else least


def _between(high: float, low: float, part: float) -> float:
    """`high` at 0, `low` at 1, and equal factors between."""
    return high * float((low / high) ** part)
