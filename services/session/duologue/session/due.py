"""The `due` sweep: this shard's sessions are written down, and those that others left are looked for.

Rule 1. What is held is noted: it only has to be found again after a death. The session's own record decides who
        owns it. What is being opened or taken over is noted at once (`stir`), ahead of the store being asked for it,
        whatever a sweep waits for meanwhile: its client may be gone by the time the shard dies, and then nobody else
        would ever look. What has ended is struck off later.
Rule 2. A session of a dead shard that is attached to a living gateway is left to that one for `ASKED_S`: it knows
        whether the shard really does not answer, and asks the heir by itself.
Rule 3. The heir is the first living shard in the rendezvous order of the session, of those that can read what the
        dead one saved. Who is not, waits for `OTHERS_S`, and then takes it all the same.
Rule 4. What is noted as ours and is not here was handed over to us, or we took it and were not told: it is taken up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from duologue.fence import Owner
from duologue.model.rendezvous import weight
from duologue.runtime.grid import until_next
from duologue.session.background import Background
from duologue.session.inheriting import MAX_WAITING, Inheritance
from duologue.session.vitals import Vitals
from duologue.store.ports import Holdings, SessionStore, StoreUnavailable

_log = logging.getLogger("duologue.session")

ASKED_S: Final = 10.0
OTHERS_S: Final = 5.0
RENEW_S: Final = 120.0
"""Well within the time to live of a session's keys."""
_PAGE: Final = 256
_NOTES: Final = 1024
"""Sessions that one note names, at most."""


class DueSweep:
    """`run` until cancelled, every `every_s`. `held`: the ids of the sessions that are here. `background`: whose tasks
    the notes are that cannot wait."""

    def __init__(
        self,
        *,
        incarnation: str,
        name: str,
        capacity: int,
        holdings: Holdings,
        sessions: SessionStore,
        vitals: Vitals,
        inheritance: Inheritance,
        held: Callable[[], Collection[str]],
        accepting: Callable[[], bool],
        every_s: float,
        background: Background,
    ) -> None:
        self._incarnation = incarnation
        self._name = name
        self._capacity = capacity
        self._holdings = holdings
        self._sessions = sessions
        self._vitals = vitals
        self._inheritance = inheritance
        self._held = held
        self._accepting = accepting
        self._every_s = every_s
        self._noted: set[str] = set()
        self._renewed_at = float("-inf")
        self._dead_since: dict[str, float] = {}
        self._background = background
        self._stirred = False

    def stir(self) -> None:
        """Something more is held: it is noted at once. Much at a time is one note. What the caller starts from here on
        speaks to the store after it."""
        if not self._stirred:
            self._stirred = True
            self._background.start(self._note_at_once(), "note of what is held")

    async def _note_at_once(self) -> None:
        self._stirred = False
        try:
            await self._note(asyncio.get_running_loop().time())
        except StoreUnavailable as error:
            _log.debug("the note of what is held waits for the store: %s", error)

    async def run(self) -> None:
        while True:
            await until_next(self._every_s)
            try:
                await self.sweep()
            except StoreUnavailable as error:
                _log.debug("the sweep for lost sessions waits for the store: %s", error)

    async def sweep(self) -> None:
        """Once. Raises StoreUnavailable."""
        now = asyncio.get_running_loop().time()
        await self._note(now)
        if not self._vitals.fresh(now) or not self._accepting():
            return
        holders = await self._holdings.holders()
        self._dead_since = {
            holder: self._dead_since.get(holder, now) for holder in holders if self._vitals.dead(holder, now)
        }
        if self._incarnation in holders:
            await self._take_up()
        for holder, since in self._dead_since.items():
            await self._inherit_from(holder, now - since)

    async def _note(self, now: float) -> None:
        held = set(self._held())
        renew = now - self._renewed_at >= RENEW_S
        taken, left = held if renew else held - self._noted, self._noted - held
        if not taken and not left:
            return
        some, gone = sorted(taken)[:_NOTES], sorted(left)[:_NOTES]
        before = self._noted & set(some)
        self._noted = (self._noted | set(some)) - set(gone)  # at once: notes do not wait for each other
        try:
            await self._holdings.note(self._incarnation, taken=some, left=gone)
        except BaseException:
            self._noted = (self._noted - (set(some) - before)) | set(gone)
            raise
        if renew and len(some) == len(taken):
            self._renewed_at = now

    async def leave(self, end: Callable[[str, Owner], None]) -> None:
        """Nothing is held any more; what another shard has handed over to us meanwhile is ended. Raises
        StoreUnavailable."""
        for session_id in await self._holdings.held_by(self._incarnation, MAX_WAITING):
            found = await self._sessions.look_up(session_id)
            if found is not None and found.owner.incarnation == self._incarnation:
                end(session_id, found.owner)
            await self._holdings.note(self._incarnation, left=[session_id])
        self._noted.clear()

    async def _take_up(self) -> None:
        here = set(self._held())
        for session_id in await self._holdings.held_by(self._incarnation, MAX_WAITING):
            if session_id in here or session_id in self._inheritance:
                continue
            found = await self._sessions.look_up(session_id)
            if found is None or found.owner.incarnation != self._incarnation:
                await self._holdings.note(self._incarnation, left=[session_id])
            elif session_id not in self._held():
                self._inheritance.take(session_id, self._incarnation)

    async def _inherit_from(self, holder: str, dead_s: float) -> None:
        """What of a dead shard's sessions is ours to take."""
        for session_id in await self._holdings.held_by(holder, _PAGE):
            if session_id in self._inheritance:
                continue
            found = await self._sessions.look_up(session_id)
            if found is None or found.owner.incarnation != holder:
                await self._holdings.note(holder, left=[session_id])
            elif (dead_s >= ASKED_S or not self._vitals.lives(found.record.gateway)) and self._heir(
                session_id, holder, dead_s
            ):
                self.stir()  # its holder's note of it is struck off as soon as it is ours
                self._inheritance.take(session_id, holder)

    def _heir(self, session_id: str, holder: str, dead_s: float) -> bool:
        if dead_s >= OTHERS_S:
            return True
        mine = weight(session_id, self._name, self._capacity)
        return all(
            weight(session_id, shard.id, shard.capacity) <= mine
            for shard in self._vitals.shards(self._vitals.wrote(holder))
            if shard.incarnation != self._incarnation
        )
