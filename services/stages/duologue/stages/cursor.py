"""One session in one stage: which units wait, which are in the engine. SANS-I/O.

Rule 1. Units enter the engine in the order in which they came; one is never overtaken by a later one.
Rule 2. A unit is started when a step takes it, and finished by an emission that is its last. After `abort`
        nothing is known of the units before it, so what still comes of them is a stray.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from duologue.model.engine import Slot, StageUnit

MAX_WAITING: Final = 64
"""Units that one session may have waiting in one stage; one more fails with `stage_backlog`."""


class Entry(msgspec.Struct, eq=False):
    """One unit on its way through one stage."""

    cursor: Cursor
    unit: StageUnit
    arrived: float
    deadline_s: float
    last: bool
    """False: more of the same unit follows from the stage before."""
    urgent: bool
    since: float = 0.0
    """When it could first be taken, or was: its own predecessors do not count against its deadline."""


class Cursor:
    """See the module. `holder` is whoever the slot belongs to; the cursor only carries it."""

    __slots__ = ("arrived_at", "engine_epoch", "finished", "holder", "period_s", "slot", "started", "waiting")

    def __init__(self, slot: Slot, holder: object, epoch: int) -> None:
        self.slot = slot
        self.holder = holder
        self.engine_epoch = epoch
        """The epoch that the engine has been told of."""
        self.arrived_at = -1.0
        """When its last unit came; -1: none has, or it was a replay."""
        self.period_s = 0.0
        """How long after the one before; 0: not known."""
        self.waiting: deque[Entry] = deque()
        self.started: list[Entry] = []
        self.finished: deque[int] = deque(maxlen=MAX_WAITING)
        """The last units that were finished since the last abort: whoever aborts may not know it yet."""

    @property
    def due(self) -> float | None:
        """When its next unit is expected; None: nobody knows."""
        return self.arrived_at + self.period_s if self.period_s else None

    def arrived(self, entry: Entry) -> None:
        """A unit has come: the pace of the next is the pace of this one."""
        if entry.unit.replay:
            self.arrived_at, self.period_s = -1.0, 0.0
            return
        self.period_s = entry.arrived - self.arrived_at if self.arrived_at >= 0 else 0.0
        self.arrived_at = entry.arrived

    def take(self, now: float) -> Entry:
        """The next unit, for a step that begins now."""
        entry = self.waiting.popleft()
        if self.waiting:
            self.waiting[0].since = now
        entry.since = now
        self.started.append(entry)
        return entry

    def find(self, unit: int) -> Entry | None:
        """The started unit of this number that is to finish first."""
        for entry in self.started:
            if entry.unit.unit == unit:
                return entry
        return None

    def finish(self, entry: Entry) -> None:
        self.started.remove(entry)
        self.finished.append(entry.unit.unit)

    def abort(self) -> tuple[list[int], list[int]]:
        """Forget all units; their numbers: finished or started, and waiting."""
        consumed = [*self.finished, *(entry.unit.unit for entry in self.started)]
        dropped = [entry.unit.unit for entry in self.waiting]
        self.finished.clear()
        self.started.clear()
        self.waiting.clear()
        return consumed, dropped

    def overdue(self, now: float) -> list[Entry]:
        """Take out the units whose deadline has passed."""
        late = [entry for entry in self.started if now - entry.since > entry.deadline_s]
        for entry in late:
            self.started.remove(entry)
        while self.waiting and now - self.waiting[0].since > self.waiting[0].deadline_s:
            late.append(self.waiting.popleft())
            if self.waiting:
                self.waiting[0].since = now
        return late
