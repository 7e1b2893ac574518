"""Which units the next step of an engine takes. SANS-I/O.

Rule 1. At most one unit of a session, in its order; sessions in the order in which they became ready.
Rule 2. A session whose next unit is urgent goes before those whose is not; one whose next unit is a replay goes
        after all others, in the places that are left.
Rule 3. A step takes what is there, up to the engine's `max_batch`, and never waits for a late one.
"""

from __future__ import annotations

from itertools import islice

from duologue.stages.cursor import MAX_WAITING, Cursor, Entry


class ReadyQueue:
    """The sessions that have a unit waiting."""

    def __init__(self) -> None:
        self._ready: dict[Cursor, None] = {}
        self._urgent: dict[Cursor, None] = {}
        self._replays: dict[Cursor, None] = {}

    def __len__(self) -> int:
        return len(self._ready) + len(self._urgent) + len(self._replays)

    @property
    def hurries(self) -> bool:
        """A unit that waits for nobody is among them."""
        return bool(self._urgent)

    @property
    def since(self) -> float:
        """How long one of them is ready already: the time of the first. There must be one."""
        return min(c.waiting[0].since for line in (self._urgent, self._ready, self._replays) for c in line)

    def push(self, entry: Entry) -> bool:
        """Let a unit wait. False: its session has too many waiting here; it was not taken."""
        cursor = entry.cursor
        waiting = cursor.waiting
        if len(waiting) >= MAX_WAITING:
            return False
        waiting.append(entry)
        if len(waiting) == 1:
            entry.since = entry.arrived
            self._line_up(cursor)
        return True

    def take(self, limit: int, now: float) -> list[Entry]:
        """The units of one step."""
        batch: list[Entry] = []
        again: list[Cursor] = []
        for line in (self._urgent, self._ready, self._replays):
            if not line:
                continue
            for cursor in list(islice(line, limit - len(batch))):
                del line[cursor]
                batch.append(cursor.take(now))
                if cursor.waiting:
                    again.append(cursor)
        for cursor in again:
            self._line_up(cursor)
        return batch

    def forget(self, cursor: Cursor) -> None:
        """Nothing of this session waits any more."""
        self._ready.pop(cursor, None)
        self._urgent.pop(cursor, None)
        self._replays.pop(cursor, None)

    def _line_up(self, cursor: Cursor) -> None:
        entry = cursor.waiting[0]
        line = self._replays if entry.unit.replay else self._urgent if entry.urgent else self._ready
        line[cursor] = None
