"""Every process that lets sessions in, or journals for them, looks now and then how full the store is.

Rule 1. Nobody waits for it: it asks beside everything else, on the connection of the calls that are not hot.
Rule 2. While a server does not answer, what was known stays: the beats tell of its silence, and what follows from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from duologue.runtime.grid import until_next
from duologue.store.memory_budget import MemoryBudget
from duologue.store.ports import StoreUnavailable

LOOK_S: Final = 2.0


class Watched(Protocol):
    """`RedisStore`, or `MemoryStore`, which has no budget."""

    @property
    def memory(self) -> MemoryBudget | None: ...

    async def look_at_memory(self, journals: int) -> None:
        """Ask the servers. Raises `StoreUnavailable`."""
        ...


async def watch_memory(store: Watched, journals: Callable[[], int], log: logging.Logger | None = None) -> None:
    """Until cancelled, or over at once without a budget. `journals`: how many there are by now, of the whole system.
    `log`: of a process that refuses sessions for it."""
    while (memory := store.memory) is not None:
        was_full = memory.full
        try:
            await store.look_at_memory(journals())
        except StoreUnavailable:
            pass  # rule 2
        if log is not None and memory.full is not was_full:
            _tell(log, memory)
        await until_next(LOOK_S)


def _tell(log: logging.Logger, memory: MemoryBudget) -> None:
    used = 100 * memory.used_ratio
    if memory.full:
        limit = memory.journal_limit // 1024
        log.warning("the store is nearly full: %.0f %%; no session is let in, a journal may hold %d KiB", used, limit)
    else:
        log.info("the store has room again: %.0f %% is used", used)
