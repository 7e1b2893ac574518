"""Store calls that nobody waits for: confirmations, releases of an attachment, trims of the journal.

Rule 1. One call a key at a time; a newer call of the same key replaces one that waits.
Rule 2. A call whose outcome is unknown is made again (they are idempotent) until it is too old to matter.
Rule 3. Bounded: beyond the bound the oldest that waits is dropped and counted; each of them only makes
        something happen earlier that happens anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from duologue.store.ports import StoreUnavailable

_log = logging.getLogger("duologue.gateway")

MAX_WAITING: Final = 4096
GIVE_UP_AFTER_S: Final = 30.0
_RETRY_S: Final = 0.5

Call = Callable[[], Awaitable[object]]


class Chores:
    """`run` works them off, oldest first; `add` never waits."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self._limit = limit
        self._waiting: dict[tuple[str, str], tuple[float, Call]] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, kind: str, session_id: str, call: Call) -> None:
        """Have `call` made soon. `kind` and `session_id` are its key."""
        key = (kind, session_id)
        if key not in self._waiting and len(self._waiting) >= self._limit:
            self._waiting.pop(next(iter(self._waiting)))
            self.dropped += 1
        self._waiting[key] = (asyncio.get_running_loop().time(), call)
        self._idle.clear()
        self._work.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._work.wait()
            if not self._waiting:
                self._work.clear()
                self._idle.set()
                continue
            key = next(iter(self._waiting))
            since, call = self._waiting.pop(key)
            try:
                await call()
            except StoreUnavailable as error:
                self._again(key, since, call, error)
                await asyncio.sleep(_RETRY_S)

    def _again(self, key: tuple[str, str], since: float, call: Call, error: StoreUnavailable) -> None:
        if key in self._waiting:  # a newer one says more
            return
        if asyncio.get_running_loop().time() - since > GIVE_UP_AFTER_S or len(self._waiting) >= self._limit:
            self.dropped += 1
            _log.warning("%s of session %s given up: %s", key[0], key[1], error)
            return
        self._waiting[key] = (since, call)

    async def settled(self, timeout_s: float) -> None:
        """Wait, at most so long, until nothing waits: before the process ends."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            self.dropped += len(self._waiting)
