"""This gateway's place in the fleet: it registers itself twice a second and dials every shard it hears of.

Rule 1. While the store is away nothing that was known is forgotten; for some time after it came back nobody
        is judged either, since everybody has to register again first.
Rule 2. A shard that is not registered any more is hung up only when no link to it answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from duologue.bus.link import Endpoint
from duologue.gateway.links import ShardLinks
from duologue.gateway.router import Router
from duologue.runtime.grid import until_next
from duologue.store.ports import Registration, Registry, Roster, StoreUnavailable

_log = logging.getLogger("duologue.gateway")

BEAT_S: Final = 0.5
EXPIRY_S: Final = 2.0
LENIENT_S: Final = 3.0
PATIENCE_S: Final = 1.0
"""A beat that has no answer by then means that the store does not answer."""


class Replaced(Exception):
    """Another process has taken this gateway's id over: this one must end."""


class Fleet:
    """Drives `router` and the dials of `endpoint` from the registry."""

    def __init__(
        self,
        registry: Registry,
        endpoint: Endpoint,
        links: ShardLinks,
        router: Router,
        describe: Callable[[], Registration],
        clock: Callable[[], float] = time.monotonic,
        *,
        answered: Callable[[bool], None] = lambda after_silence: None,
    ) -> None:
        self._told_answered = answered
        self._registry = registry
        self._endpoint = endpoint
        self._links = links
        self._router = router
        self._describe = describe
        self._clock = clock
        self._known: dict[tuple[str, str], Registration] = {}
        self._dialled: dict[str, str] = {}
        self._answered_at = float("-inf")
        self._asked_at: float | None = None
        """When the beat was sent that has no answer yet."""
        self._failing = False
        """The last beat had none."""
        self._lenient_until = float("-inf")

    def store_answers(self, now: float) -> bool:
        """Whether the registry answered within the last expiry (monotonic seconds)."""
        return now - self._answered_at < EXPIRY_S

    def store_ready(self, now: float) -> bool:
        """Whether the store answers now, as far as the beats tell: known within 1.5 s of its silence, and within
        a beat of its return."""
        late = self._asked_at is not None and now - self._asked_at > PATIENCE_S
        return self.store_answers(now) and not late and not self._failing

    async def join(self) -> None:
        """Take the id over and learn who is there. Raises `StoreUnavailable`."""
        self._learn(await self._registry.beat(self._describe(), join=True), self._clock())

    async def run(self) -> None:
        """Beat until cancelled. Raises `Replaced`."""
        while True:
            await until_next(BEAT_S)
            self._asked_at = self._clock()
            try:
                roster = await self._registry.beat(self._describe())
            except StoreUnavailable as error:
                self._failing = True
                if self.store_answers(self._clock()):
                    _log.warning("the registry does not answer: %s", error)
                continue
            finally:
                self._asked_at = None
            was_failing, self._failing = self._failing, False
            if roster.replaced:
                raise Replaced("another process runs under this gateway's id")
            self._told_answered(was_failing)
            self._learn(roster, self._clock())

    async def leave(self) -> None:
        """Sign off; what cannot be told expires by itself."""
        own = self._describe()
        try:
            await self._registry.remove(own.kind, own.id, own.incarnation)
        except StoreUnavailable:
            _log.info("signing off was not possible; the registration expires by itself")

    def _learn(self, roster: Roster, now: float) -> None:
        if not self.store_answers(now):
            self._lenient_until = now + LENIENT_S
        self._answered_at = now
        present = {(member.kind, member.id): member for member in roster.members}
        if now < self._lenient_until:
            present = {**self._known, **present}
        else:
            for key, member in self._known.items():  # unregistered, but its link answers
                if key not in present and member.kind == "shard" and self._links.of(member.incarnation):
                    present[key] = member
        self._known = present
        self._router.update(present.values())
        self._dial()

    def _dial(self) -> None:
        wanted = {shard.id: shard.endpoint for shard in self._router.shards if shard.endpoint}
        for name, address in list(self._dialled.items()):
            if wanted.get(name) != address:
                self._endpoint.hang_up(name)
                del self._dialled[name]
        for name, address in wanted.items():
            if name not in self._dialled:
                self._dialled[name] = address
                self._endpoint.dial(name, address)
