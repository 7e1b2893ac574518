"""What a gateway had sent while the store was away, and could not journal before its client left.

Rule 1. One run of numbers without a hole: what does not follow on the last one begins anew. Bounded like the journal:
        the oldest go first, and whoever lacks those has a gap.
Rule 2. It is written under the number of whoever is the egress by then, and before that one appends anything: a stream
        takes nothing below its last number.
Rule 3. It stays until it is known to be in the journal: an egress may be followed by the next while it writes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from duologue.fence import Owner
from duologue.runtime import metrics
from duologue.store.ports import Appended, AppendOutcome, Entry, JournalAppender, Unknown

MAX_BYTES: Final = 8 * 1024 * 1024
BATCH_EVENTS: Final = 32
BATCH_BYTES: Final = 256 * 1024
REPEAT_S: Final = 0.1


class Backlog:
    """One session's. See the module."""

    __slots__ = ("_bytes", "_entries", "_first")

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._first = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> int:
        """The number of the last event; 0: there is none."""
        return self._first + len(self._entries) - 1 if self._entries else 0

    def add(self, first: int, entries: Sequence[Entry]) -> None:
        """`entries` are the events `first`, `first` + 1, ..., each with its delivery id and body."""
        if not self._entries or first != self.last + 1:
            self._drop(len(self._entries))
            self._first = first
        self._entries.extend(entries)
        self._bytes += sum(len(body) for _, body in entries)
        dropped = 0
        while self._bytes > MAX_BYTES and len(self._entries) > 1:
            self._drop(1)
            dropped += 1
        metrics.SESSION_KEPT.labels("taken").inc(len(entries))
        metrics.SESSION_KEPT.labels("over_bound").inc(dropped)

    def journaled(self, through: int) -> None:
        """The journal has everything up to that number, or can take nothing below it any more."""
        self._drop(min(len(self._entries), through - self._first + 1))

    def bridges(self, journaled: int, to: int) -> bool:
        """Whether a journal that ends at `journaled` gets from here all that is missing up to `to`."""
        return bool(self._entries) and self._first <= journaled + 1 and self.last >= to

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._bytes -= len(self._entries.popleft()[1])
            self._first += 1

    def _batch(self) -> list[Entry]:
        """The first that fit into one append, at least one."""
        size = 0
        batch: list[Entry] = []
        for entry in islice(self._entries, BATCH_EVENTS):
            size += len(entry[1])
            if batch and size > BATCH_BYTES:
                break
            batch.append(entry)
        return batch

    async def write(self, appender: JournalAppender, session_id: str, owner: Owner, egress: int) -> bool:
        """Append it all, batch by batch, for as long as it takes. False: the journal refuses it. May be cancelled."""
        while batch := self._batch():
            first = self._first
            outcome = await _append(appender, session_id, owner, egress, first, batch)
            if isinstance(outcome, Appended):
                metrics.SESSION_KEPT.labels("journaled").inc(len(batch))
                self.journaled(first + len(batch) - 1)
            elif isinstance(outcome, Unknown):
                await asyncio.sleep(REPEAT_S)
            else:
                return False
        return True


async def _append(
    appender: JournalAppender, session_id: str, owner: Owner, egress: int, first: int, batch: Sequence[Entry]
) -> AppendOutcome:
    """One append. `Unknown` too, if it was not taken."""
    done: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()

    def on_outcome(outcome: AppendOutcome) -> None:
        if not done.done():  # whoever waited may have been cancelled
            done.set_result(outcome)

    return await done if appender.submit(session_id, owner, egress, first, batch, on_outcome) else Unknown()
