"""The lease reaper: what has to be done for sessions from time to time, though nothing happens in them.

Rule 1. A silent session's keys live as long as it does: they are touched before their time to live is over.
Rule 2. A touch that is refused tells that another shard has the session. After a gap in which others may have taken
        us for dead (`doubt`) all are touched.
Rule 3. What could not be released at a session's end is tried again.

Expiry itself (idle, grace, maximum) is the core's: `next_deadline` says when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from duologue.runtime.grid import until_next
from duologue.session.resident import Resident
from duologue.session.surroundings import Surroundings
from duologue.store.ports import JournalRefused, Refused, StoreUnavailable

TOUCH_AFTER_S: Final = 60.0
MAX_TOUCHES: Final = 64
"""In one sweep, so that a shard full of silent sessions spreads them."""


class Reaper:
    """`run` sweeps every `interval_s` until cancelled."""

    def __init__(self, around: Surroundings, residents: Callable[[], Sequence[Resident]], interval_s: float) -> None:
        self._interval_s = interval_s
        self._around = around
        self._residents = residents

    def doubt(self) -> None:
        """We were not heard of for a while: every session may be another shard's by now."""
        for resident in self._residents():
            resident.touched_at = float("-inf")

    async def run(self) -> None:
        while True:
            await until_next(self._interval_s)
            await self.sweep()

    async def sweep(self) -> None:
        self._around.cleanup.sweep()
        now = asyncio.get_running_loop().time()
        due = [r for r in self._residents() if now - r.touched_at >= TOUCH_AFTER_S and not r.runner.closing]
        for resident in due[:MAX_TOUCHES]:
            try:
                await self._touch(resident)
            except StoreUnavailable:
                return  # the next sweep finds them due still
            resident.touched_at = now

    async def _touch(self, resident: Resident) -> None:
        session_id, owner = resident.session_id, resident.runner.owner
        refusal = await self._around.store.touch(session_id, owner)
        if isinstance(refusal, Refused) and not resident.runner.finished:
            resident.refused(refusal)
            return
        head = await self._around.journal.touch(session_id, owner)
        if isinstance(head, JournalRefused) and head.reason == "owner" and not resident.runner.finished:
            resident.refused(Refused("owner", head.head.owner))
