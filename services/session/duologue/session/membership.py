"""The shard's place in the fleet: it registers itself twice a second and learns of the workers in the answer.

Rule 1. While the store is away nothing that was known is forgotten, and the sessions go on.
Rule 2. A process whose id another one has taken over must end: `Replaced`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from duologue.runtime.grid import until_next
from duologue.store.ports import Registration, Registry, Roster, StoreUnavailable

_log = logging.getLogger("duologue.session")

BEAT_S: Final = 0.5
EXPIRY_S: Final = 2.0


class Replaced(Exception):
    """Another process has taken this shard's id over: this one must end."""


class Membership:
    """`describe` says what to register now; `learn` hears who is there."""

    def __init__(
        self,
        registry: Registry,
        describe: Callable[[], Registration],
        learn: Callable[[Iterable[Registration]], None],
        *,
        beat_s: float = BEAT_S,
        expiry_s: float = EXPIRY_S,
    ) -> None:
        self._beat_s, self._expiry_s = beat_s, expiry_s
        self._registry = registry
        self._describe = describe
        self._learn = learn
        self._answered_at = float("-inf")

    def store_answers(self) -> bool:
        """Whether the registry has answered within the last expiry."""
        return asyncio.get_running_loop().time() - self._answered_at < self._expiry_s

    async def join(self) -> None:
        """Take the id over. Raises `StoreUnavailable`."""
        self._heard(await self._registry.beat(self._describe(), expiry_s=self._expiry_s, join=True))

    async def run(self) -> None:
        """Beat until cancelled. Raises `Replaced`."""
        while True:
            await until_next(self._beat_s)
            await self.beat()

    async def beat(self) -> None:
        """Once. Raises `Replaced`."""
        try:
            roster = await self._registry.beat(self._describe(), expiry_s=self._expiry_s)
        except StoreUnavailable as error:
            if self.store_answers():
                _log.warning("the registry does not answer: %s", error)
            return
        if roster.replaced:
            raise Replaced("another process runs under this shard's id")
        self._heard(roster)

    async def leave(self) -> None:
        """Sign off; what cannot be told expires by itself."""
        own = self._describe()
        try:
            await self._registry.remove(own.kind, own.id, own.incarnation)
        except StoreUnavailable:
            _log.info("signing off was not possible; the registration expires by itself")

    def _heard(self, roster: Roster) -> None:
        self._answered_at = asyncio.get_running_loop().time()
        self._learn(roster.members)
