"""How long a step waits for the units of other sessions: the gather window of a stage. SANS-I/O.

Rule 1. From the first ready unit on a step waits at most the window; a unit that waited for the step before has
        had its window already, so only an idle engine waits.
Rule 2. It waits for the sessions that are expected within the window, and for nobody else: one whose last two units
        came a period apart is expected a period after the last. One that is later than a window is not any more.
Rule 3. A full batch, and a unit that begins a response, wait for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

from duologue.stages.batching import ReadyQueue
from duologue.stages.cursor import Cursor


class Gathering:
    """`window_s`: 0 never waits."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s

    def begins_at(self, ready: ReadyQueue, cursors: Iterable[Cursor], limit: int, now: float) -> float:
        """When the step that could begin now is to begin. Ask again then, and whenever a unit comes."""
        if len(ready) >= limit or ready.hurries:
            return now
        ends = ready.since + self.window_s
        if now >= ends:
            return now
        latest = now
        for cursor in cursors:
            due = cursor.due
            if cursor.waiting or due is None or due > ends:
                continue
            latest = max(latest, due + self.window_s)
        return min(latest, ends)
