"""One session's checkpoints on their way to the store.

Rule 1. One write is out at a time; of those that wait only the newest is kept, since it contains the rest.
Rule 2. A write of unknown outcome is repeated (as the newest one), for as long as the session lives.
Rule 3. A refusal by owner ends it: another shard has the session now.
Rule 4. What the stages have heard is written before the checkpoint that says so: a command that it covers is sent by
        nobody again, so an heir has its sound from the store or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final

from duologue.fence import Owner
from duologue.session.background import Background
from duologue.session.core.effects import Checkpoint
from duologue.session.tallies import Tallies
from duologue.store.ports import Refused, SessionStore, StoreUnavailable

RETRY_FIRST_S: Final = 0.05
RETRY_LAST_S: Final = 1.0


class Checkpointer:
    """`confirmed(order)` and `refused(refusal)` are called from the loop, never from inside `put`.

    `write_heard`: has the store take everything that was heard so far, or raises StoreUnavailable."""

    def __init__(
        self,
        store: SessionStore,
        background: Background,
        session_id: str,
        owner: Owner,
        *,
        confirmed: Callable[[Checkpoint], None],
        refused: Callable[[Refused], None],
        tallies: Tallies,
        write_heard: Callable[[], Awaitable[None]] | None = None,
        retry_first_s: float = RETRY_FIRST_S,
    ) -> None:
        self._store = store
        self._background = background
        self._session_id = session_id
        self._owner = owner
        self._confirmed = confirmed
        self._refused = refused
        self._tallies = tallies
        self._write_heard = write_heard
        self._retry_first_s = retry_first_s
        self._next: Checkpoint | None = None
        self._task: asyncio.Task[None] | None = None
        self.failures = 0

    @property
    def busy(self) -> bool:
        return self._task is not None

    def put(self, order: Checkpoint) -> None:
        self._next = order
        if self._task is None:
            self._task = self._background.start(self._write(), f"checkpoint of {self._session_id}")

    def stop(self) -> None:
        """No further write is started, and what the one that is out says is not heard."""
        self._next = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _write(self) -> None:
        delay_s = self._retry_first_s
        while (order := self._next) is not None:
            self._next = None
            asked_at = perf_counter()
            try:
                if self._write_heard is not None:
                    await self._write_heard()
                result = await self._store.checkpoint(self._session_id, self._owner, order.number, order.body)
            except StoreUnavailable:
                self.failures += 1
                self._next = self._next or order
                await asyncio.sleep(delay_s)
                delay_s = min(RETRY_LAST_S, delay_s * 2)
                continue
            delay_s = self._retry_first_s
            if isinstance(result, Refused) and not self._superseded(result):
                self._next = None
                self._task = None
                return self._refused(result)
            self._tallies.checkpoint_bytes(len(order.body))
            self._tallies.checkpoint_s(perf_counter() - asked_at)
            self._confirmed(order)
        self._task = None
        return None

    def _superseded(self, refusal: Refused) -> bool:
        """A newer one of ours is stored (its reply was lost): it contains this one."""
        return refusal.reason == "number" and refusal.owner.number <= self._owner.number
