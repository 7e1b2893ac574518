"""A TCP proxy in front of a unix socket that delays what passes, piece by piece, in order; that can be cut, and made
to lead elsewhere, as an address does after a failover."""

from __future__ import annotations

import asyncio
import random
import ssl
from pathlib import Path


class SlowProxy:
    """`async with`; `url` is where it listens. `delay_s`: the most that one piece is held back. `tls`: it speaks it."""

    def __init__(self, target: Path, delay_s: float, seed: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self._target = target
        self._delay_s = delay_s
        self._random = random.Random(seed)
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.connections = 0
        """Made so far."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> SlowProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def lead_to(self, target: Path) -> None:
        """From the next connection on; those that are there stay."""
        self._target = target

    def cut(self, share: float = 1.0) -> None:
        """End this share of the connections, wherever they are between a command and its reply."""
        for client in [client for client in self._clients if self._random.random() < share]:
            client.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            writer.close()  # as a balancer does whose server is gone
            return
        self._clients.add(writer)
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while piece := await source.read(65536):
                if self._delay_s:
                    await asyncio.sleep(self._random.uniform(0, self._delay_s))
                target.write(piece)
                await target.drain()
        except ConnectionError:
            pass  # one side has hung up: so do we
        finally:
            self._clients.discard(target)
            target.close()
