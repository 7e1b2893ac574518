"""What is left to do for sessions that are over: their keys in the store, tried until done.

Rule 1. A session's end never waits for the store. What could not be released is tried again at each sweep.
Rule 2. Bounded: beyond `MAX_PENDING` the oldest is given up; its keys expire by their time to live.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from duologue.fence import Owner
from duologue.session.background import Background
from duologue.store.ports import Journal, SessionStore, StoreUnavailable

_log = logging.getLogger("duologue.session")

MAX_PENDING: Final = 4096


class Cleanup:
    """See the module."""

    def __init__(self, store: SessionStore, journal: Journal, background: Background) -> None:
        self._store = store
        self._journal = journal
        self._background = background
        self._pending: dict[str, Owner] = {}
        self._running: set[str] = set()
        self.given_up = 0

    def __len__(self) -> int:
        return len(self._pending)

    def pending(self) -> Collection[str]:
        """The sessions whose keys are still to be deleted."""
        return self._pending.keys()

    def __contains__(self, session_id: object) -> bool:
        """It is over, and its keys are still to be deleted."""
        return session_id in self._pending

    def release(self, session_id: str, owner: Owner) -> None:
        """Delete what the store holds of this session, now or as soon as it answers."""
        if len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]
            self.given_up += 1
        self._pending[session_id] = owner
        self._try(session_id)

    def sweep(self) -> None:
        """Try everything that is left."""
        for session_id in list(self._pending):
            self._try(session_id)

    def _try(self, session_id: str) -> None:
        if session_id not in self._running:
            self._running.add(session_id)
            self._background.start(self._release(session_id), f"release of {session_id}")

    async def _release(self, session_id: str) -> None:
        owner = self._pending[session_id]
        try:
            # A refusal is an end too: a newer owner has it, or it is gone already.
            await self._journal.release(session_id, owner)
            await self._store.release(session_id, owner)
        except StoreUnavailable as error:
            _log.debug("session %s is not released yet: %s", session_id, error)
        else:
            self._pending.pop(session_id, None)
        finally:
            self._running.discard(session_id)
