"""The shard's place in the fleet: it registers itself twice a second and learns of the workers in the answer.

Rule 1. While the store is away nothing that was known is forgotten, and the sessions go on.
Rule 2. Whoever is asked to inherit from somebody who may have died just now need not wait for the next beat (`hurry`).
Rule 3. A process whose id another one has taken over must end: `Replaced`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

from duologue.runtime.grid import next_on_grid
from duologue.store.ports import Registration, Registry, Roster, StoreUnavailable

_log = logging.getLogger("duologue.session")

BEAT_S: Final = 0.5
HURRY_S: Final = 0.1
"""So soon after a beat another one may follow at the earliest."""
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
        self._answered_at = self._beat_at = float("-inf")
        self._hurried = asyncio.Event()

    def store_answers(self) -> bool:
        """Whether the registry has answered within the last expiry."""
        return asyncio.get_running_loop().time() - self._answered_at < self._expiry_s

    async def join(self) -> None:
        """Take the id over. Raises `StoreUnavailable`."""
        self._heard(await self._registry.beat(self._describe(), expiry_s=self._expiry_s, join=True))

    async def run(self) -> None:
        """Beat until cancelled. Raises `Replaced`."""
        while True:
            await self._pause()
            await self.beat()

    def hurry(self) -> None:
        """Beat now, or as soon as the last one is `HURRY_S` ago."""
        self._hurried.set()

    async def _pause(self) -> None:
        now = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(next_on_grid(now, self._beat_s)):
                await self._hurried.wait()
                await asyncio.sleep(self._beat_at + HURRY_S - asyncio.get_running_loop().time())

    async def beat(self) -> None:
        """Once. Raises `Replaced`."""
        self._hurried.clear()
        self._beat_at = asyncio.get_running_loop().time()
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
