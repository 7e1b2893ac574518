"""The places of one engine: who may have one, and whether a place is still the one it was. SANS-I/O.

Rule 1. An index that is given again gets a new incarnation, so what a step made for its former holder is
        told apart after the step.
Rule 2. Freeing is idempotent and of no effect for a place that has changed hands.
"""

from __future__ import annotations

from heapq import heappop, heappush

from duologue.model.engine import Slot


class SlotTable:
    """`total` places. The lowest free index is given first, so that a half-full engine stays dense."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total))
        self._held = [0] * total
        """The incarnation that holds each place; 0: free."""
        self._incarnations = 0

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def take(self) -> Slot | None:
        """A place of one's own, or None if there is none left."""
        if not self._free:
            return None
        index = heappop(self._free)
        self._incarnations += 1
        self._held[index] = self._incarnations
        return Slot(index, self._incarnations)

    def is_current(self, slot: Slot) -> bool:
        return self._held[slot.index] == slot.incarnation

    def free(self, slot: Slot) -> bool:
        """Give the place back. False: it was not this one's any more."""
        if not self.is_current(slot):
            return False
        self._held[slot.index] = 0
        heappush(self._free, slot.index)
        return True
