"""One session's stages of a draining worker on their way to another one, with what they hold.

    no unit goes out -> ExportStages -> StagesExported -> ImportStages at the heir -> StagesOpened -> units go there

Rule 1. The fence stays: a move is no new binding, and the session's core hears nothing of it. What tells the two
        workers apart is the link: once the heir has opened, what still comes from the old one is dropped.
Rule 2. The old worker keeps the session until the heir has it. Whatever goes wrong before (refused, too late, a
        cancel, the heir dies) sends what waited to the old one, as if nothing had been asked.
Rule 3. A state is in a shard only while it passes through: so many moves at once (`MAX_MOVES`), each bounded by the
        worker (`[stages] max_export_bytes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from duologue.bus.link import Link
from duologue.session.workers import Worker

MAX_MOVES: Final = 4
"""Of a shard at once; the others wait for their turn."""
MOVE_TIMEOUT_S: Final = 5.0
"""From the question to the open heir; the last units of the old worker are in it."""
NOT_NOW: Final = "not_now"
NOT_NOW_S: Final = 0.25
"""So long a session is left alone whose stages were in the middle of something."""


class StageMove:
    """One attempt. `importing`: the state is with the heir, which has not opened yet."""

    __slots__ = ("heir", "importing", "old", "source", "stages", "target", "ticket", "timer")

    def __init__(
        self, ticket: int, old: Worker, source: Link, heir: Worker, target: Link, stages: tuple[int, ...]
    ) -> None:
        self.ticket = ticket
        self.old, self.source = old, source
        self.heir, self.target = heir, target
        self.stages = stages
        self.importing = False
        self.timer: asyncio.TimerHandle | None = None


class StageMoves:
    """All that are under way in a shard, and what became of the others."""

    def __init__(self) -> None:
        self.under_way = 0
        self.moved: dict[str, int] = {}
        """Sessions that left a draining worker: with their `state`, by a `rebuild` at a turn end, at the `deadline`."""
        self.failed: dict[str, int] = {}
        """Attempts to move with the state, by what ended them."""
        self.late = 0
        """What a worker told of a session that had left it."""
        self.on_over: Callable[[], None] = lambda: None
        """There is room for another one."""
        self._tickets = 0

    @property
    def full(self) -> bool:
        return self.under_way >= MAX_MOVES

    def next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def begin(self, move: StageMove) -> StageMove:
        self.under_way += 1
        return move

    def end(self, move: StageMove, failed: str = "") -> None:
        """It is over. `failed`: why it came to nothing."""
        if move.timer is not None:
            move.timer.cancel()
        self.under_way -= 1
        if failed:
            self.failed[failed] = self.failed.get(failed, 0) + 1
        self.on_over()

    def left(self, how: str) -> None:
        """A session has left a draining worker."""
        self.moved[how] = self.moved.get(how, 0) + 1
