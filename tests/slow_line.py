"""A line between a process and its store on which every reply is late, and none overtakes another.

A thread of its own with an event loop: the block that uses it may wait for something else meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

#: Replies of one connection that wait to be due; beyond it the store's side is not read.
MAX_WAITING = 4096


@contextlib.contextmanager
def slow_line(target: Path, middle_s: float, spread_s: float, seed: int = 0) -> Iterator[str]:
    """The URL of a TCP port behind which is the unix socket `target`, replies late by `middle_s` +- `spread_s`."""
    loop = asyncio.new_event_loop()
    line = _Line(target, middle_s, spread_s, seed)
    thread = threading.Thread(target=loop.run_forever, name="slow-line", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(line.open(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(line.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


class _Line:
    def __init__(self, target: Path, middle_s: float, spread_s: float, seed: int) -> None:
        self._target = target
        self._middle_s = middle_s
        self._spread_s = spread_s
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        there, back = await asyncio.open_unix_connection(str(self._target))
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_WAITING)
        try:
            async with asyncio.TaskGroup() as both:
                for way in (self._at_once(reader, back), self._read_late(there, waiting), _write(waiting, writer)):
                    both.create_task(way)
        except* (ConnectionError, _HungUp):
            pass  # one side has hung up: so does the other
        finally:
            writer.close()
            back.close()

    async def _at_once(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(65536):
            target.write(piece)
            await target.drain()
        raise _HungUp

    async def _read_late(self, source: asyncio.StreamReader, waiting: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        while piece := await source.read(65536):
            late = self._middle_s + self._random.uniform(-self._spread_s, self._spread_s)
            due = max(due, loop.time() + late)  # order is kept; what comes meanwhile waits at the same time, not after
            await waiting.put((due, piece))
        raise _HungUp


class _HungUp(Exception):
    """One end of the line is gone."""


async def _write(waiting: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due, piece = await waiting.get()
        await asyncio.sleep(due - loop.time())
        target.write(piece)
        await target.drain()
