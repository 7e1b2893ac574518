"""Work that would hold up the loop, such as the conversion of long payloads: done by a few threads.

Rule 1. At most `max_queued` jobs wait or run; beyond it a job is answered `offload_full`, in the next turn.
Rule 2. A job is a pure function of its body: what is called from a thread touches nothing of the session.
Rule 3. What a job refuses (RealtimeProtocolError) is the client's fault and is answered with its message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final

from duologue.protocol.realtime.errors import RealtimeProtocolError

_log = logging.getLogger("duologue.session")

MAX_QUEUED: Final = 256

Job = Callable[[str, bytes], bytes]
"""(kind, body) to result."""
Done = Callable[[bytes, str], None]
"""Called with the result and an error code (empty: none), from the loop, never from inside `submit`."""


class OffloadPool:
    """Threads for the jobs of all sessions of a shard."""

    def __init__(
        self, job: Job, *, threads: int = 2, max_queued: int = MAX_QUEUED, executor: Executor | None = None
    ) -> None:
        """`executor`: instead of threads of its own."""
        self._job = job
        self._max_queued = max_queued
        self._executor = executor or ThreadPoolExecutor(threads, thread_name_prefix="offload")
        self.queued = 0
        self.refused = 0

    def submit(self, kind: str, body: bytes, done: Done) -> None:
        loop = asyncio.get_running_loop()
        if self.queued >= self._max_queued:
            self.refused += 1
            loop.call_soon(done, b"", "offload_full")
            return
        self.queued += 1
        future = self._executor.submit(self._job, kind, body)
        future.add_done_callback(lambda ended: _tell(loop, self._finished, ended, done))

    def _finished(self, ended: Future[bytes], done: Done) -> None:
        self.queued -= 1
        if ended.cancelled():
            done(b"", "offload_cancelled")
        elif isinstance(error := ended.exception(), RealtimeProtocolError):
            done(b"", error.message)
        elif error is not None:
            _log.error("an offloaded job failed", exc_info=error)
            done(b"", "offload_failed")
        else:
            done(ended.result(), "")

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def _tell(
    loop: asyncio.AbstractEventLoop,
    finished: Callable[[Future[bytes], Done], None],
    ended: Future[bytes],
    done: Done,
) -> None:
    """From the job's thread. The loop may be closed: the process ends and nobody waits for the result."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(finished, ended, done)
