"""Tasks of the shell that nobody awaits: each has an owner, an end, and somebody who hears of its failure.

Nothing on the path of a unit starts one: they are for the store (open, checkpoint, claim, release).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger("duologue.session")


class Background:
    """A set of running tasks. `close` cancels them and waits until they are gone."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)

    async def settle(self) -> None:
        """Wait until none is running, those started meanwhile included."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
