"""Planned ends: a shard that drains, or is asked to stop, gives its sessions to their heirs instead of ending them.

Order, for each session: wait until nothing is being said, hold what comes, save, name the heir in the store, tell the
gateway, let go. The gateway sends the heir what was held; the heir rebuilds the context as the pipeline says.

Rule 1. Who says nothing is moved at once; a response that is still open at the deadline ends with its shard
        (`shard_lost`), as if that had died.
Rule 2. A session is held for as long as the store takes. If that does not answer, the session goes on here.
Rule 3. Without another shard that takes sessions, and can read what this one saves, nothing is handed over, and
        nothing is waited for: in a rolling restart one of an older release could do nothing with it, and be its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from duologue.model.rendezvous import weight
from duologue.session.resident import Resident
from duologue.session.vitals import Vitals
from duologue.store.ports import Done, Holdings, Owned, Refused, Registration, SessionStore, StoreUnavailable

_log = logging.getLogger("duologue.session")

LOOK_S: Final = 0.05
AT_ONCE: Final = 16
HELD_S: Final = 2.0
"""How long a session may be held for a store that does not answer."""
_RETRY_S: Final = 0.1


class HandOver:
    """`run` may be called again: sessions that went on here are tried once more."""

    def __init__(
        self,
        *,
        incarnation: str,
        writes: int,
        sessions: SessionStore,
        holdings: Holdings,
        vitals: Vitals,
        residents: Callable[[], Sequence[Resident]],
    ) -> None:
        """`writes`: the version of the checkpoints that this shard saves."""
        self.outcomes: Counter[str] = Counter()
        """Hand-overs that came to an end, by what came of them."""
        self._incarnation = incarnation
        self._writes = writes
        self._sessions = sessions
        self._holdings = holdings
        self._vitals = vitals
        self._residents = residents

    def _heirs(self, state: int) -> list[Registration]:
        """The shards that take sessions and read checkpoints of this version."""
        shards = [shard for shard in self._vitals.shards(state) if shard.incarnation != self._incarnation]
        return [shard for shard in shards if shard.capacity > 0]

    async def run(self, deadline_s: float) -> bool:
        """Until every session has moved, ended, or could not be moved, at most so long. False: nobody takes any."""
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        places = asyncio.Semaphore(AT_ONCE)
        if not self._heirs(self._writes):
            if others := self._heirs(0):
                self.outcomes["no_reader"] += len(self._residents())
                told = "%d sessions stay: none of %s can read what this shard saves (version %d)"
                _log.warning(told, len(self._residents()), [shard.id for shard in others], self._writes)
            return False
        async with asyncio.TaskGroup() as group:
            for resident in self._residents():
                group.create_task(self._move(resident, until, places))
        return True

    async def _move(self, resident: Resident, until: float, places: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        while not (resident.movable or resident.runner.closing) and self._heirs(self._writes) and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # it is the sum of the core, the attachment and the end: no one event
        async with places:
            heirs = self._heirs(self._writes)
            if resident.runner.closing or not heirs:
                return
            session_id = resident.session_id
            heir = max(heirs, key=lambda shard: weight(session_id, shard.id, shard.capacity))
            outcome = await self._give(resident, heir)
        self.outcomes[outcome] += 1
        _log.info("session %s: hand-over to %s: %s", session_id, heir.id, outcome)

    async def _give(self, resident: Resident, heir: Registration) -> str:
        session_id, owner = resident.session_id, resident.runner.owner
        saved = resident.hold()
        until = asyncio.get_running_loop().time() + HELD_S
        answer: Owned | Refused | Done | None = None
        while answer is None:
            try:
                await resident.runner.flush_input()
                answer = await self._sessions.checkpoint(session_id, owner, saved.number, saved.body)
                if isinstance(answer, Done):
                    answer = await self._sessions.hand_over(session_id, owner, heir.incarnation)
            except StoreUnavailable:
                answer = None
                if asyncio.get_running_loop().time() >= until:
                    resident.go_on()
                    return "store_away"
                await asyncio.sleep(_RETRY_S)
        if isinstance(answer, Owned):
            resident.handed_over(answer.owner)
            try:
                await self._holdings.note(heir.incarnation, taken=[session_id])
            except StoreUnavailable as error:
                _log.debug("session %s: its gateway has to ask for it: %s", session_id, error)
            return "handed_over"
        if isinstance(answer, Refused):
            resident.go_on()
            resident.refused(answer)
        return "refused"
