"""An event loop in a thread of its own, for an engine that talks to something slow: its step's thread never waits.

Rule 1. It is begun once and ended once. What still runs then is cancelled, and has unwound before the loop closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, Final, TypeVar

END_S: Final = 10.0
"""How long the end may take. Beyond it `close` raises TimeoutError, and the process must not wait for the thread."""

_T = TypeVar("_T")


class LoopThread:
    """`loop` is there from the beginning; nothing runs in it before `start`."""

    def __init__(self, name: str) -> None:
        self.loop: Final = asyncio.new_event_loop()
        self._thread = Thread(target=self.loop.run_forever, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def started(self) -> bool:
        return self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """From any thread. Cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self, last: Coroutine[Any, Any, None] | None = None, end_s: float = END_S) -> None:
        """From another thread. `last`: what is still to be done in the loop, behind everything else."""
        if self.started:
            self.submit(_end(last)).result(end_s)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(end_s)
        elif last is not None:
            last.close()
        self.loop.close()


async def _end(last: Coroutine[Any, Any, None] | None) -> None:
    own = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not own]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if last is not None:
        await last
