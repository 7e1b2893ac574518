"""A TCP proxy in front of a unix socket that delays what passes, piece by piece, in order."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path


class SlowProxy:
    """`async with`; `url` is where it listens. `delay_s`: the most that one piece is held back."""

    def __init__(self, target: Path, delay_s: float, seed: int = 0) -> None:
        self._target = target
        self._delay_s = delay_s
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> SlowProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(str(self._target))
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while piece := await source.read(65536):
                await asyncio.sleep(self._random.uniform(0, self._delay_s))
                target.write(piece)
                await target.drain()
        except ConnectionError:
            pass  # one side has hung up: so do we
        finally:
            target.close()
