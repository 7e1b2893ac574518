"""The network between clients and gateways: a load balancer that can cut, and that can lose a line without a word.

Rule 1. Each session dials a port of its own, so that its connections can be told from others'.
Rule 2. A connection goes to a gateway that says it is ready, in turn; where that does not take it, to the next.
Rule 3. A reset is a reset (RST). A half-open line swallows all bytes of both sides; then the client's side is reset,
        and the gateway's side hears nothing ever again, until it lets go of it by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import Coroutine, Sequence
from typing import Final, cast

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
LOOK_S: Final = 0.25
PATIENCE_S: Final = 0.5


class _End(asyncio.Protocol):
    """One side of a connection; what comes goes to the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.silent = False
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        if self.silent:
            return
        if self.other is None or self.other.transport is None:
            self.early.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.other is None or self.silent:
            return
        if exc is None and self.other.transport is not None:
            self.other.transport.close()
        else:
            self.other.reset()

    def reset(self) -> None:
        if self.transport is not None:
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()


class Relay:
    """`listen` gives a session its port."""

    def __init__(self, gateways: Sequence[int]) -> None:
        self._gateways = gateways
        """Ports on 127.0.0.1."""
        self.ready: set[int] = set()
        self.all_ready = asyncio.Event()
        self._turn = itertools.count()
        self._servers: list[asyncio.Server] = []
        self._clients: dict[int, _End] = {}
        self._half_open: set[_End] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        for port in self._gateways:
            self._spawn(self._watch(port))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers:
            server.close()
        for end in (*self._clients.values(), *self._half_open):
            end.reset()

    async def listen(self, session: int) -> int:
        """The port of this session."""

        def accept() -> _End:
            end = _End()
            self._clients[session] = end
            self._spawn(self._connect(end))
            return end

        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _connect(self, client: _End) -> None:
        first = next(self._turn)
        for n in range(len(self._gateways)):
            port = self._gateways[(first + n) % len(self._gateways)]
            if port not in self.ready:
                continue
            try:
                async with asyncio.timeout(PATIENCE_S):
                    _, gateway = await asyncio.get_running_loop().create_connection(_End, "127.0.0.1", port)
            except (OSError, TimeoutError):
                continue
            gateway.other, client.other = client, gateway
            if client.transport is None:
                gateway.reset()
                return
            assert gateway.transport is not None
            gateway.transport.writelines(client.early)
            return
        client.reset()

    async def _watch(self, port: int) -> None:
        """Whether this gateway takes connections, asked as a balancer asks."""
        while True:
            ready = False
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(PATIENCE_S):
                    ready = await _says_ready(port)
            (self.ready.add if ready else self.ready.discard)(port)
            (self.all_ready.set if len(self.ready) == len(self._gateways) else self.all_ready.clear)()
            await asyncio.sleep(LOOK_S)

    # -- faults -----------------------------------------------------------------------------------------

    def reset(self, session: int) -> None:
        """Cut the line of a session."""
        client = self._clients[session]
        if client.other is not None:
            client.other.reset()
        client.reset()

    def freeze(self, session: int) -> _End:
        """From now on nothing comes through, and nobody is told. What it returns is the client's side, to be reset."""
        client = self._clients[session]
        client.silent = True
        if client.other is not None:
            client.other.silent = True
            self._half_open.add(client.other)
        return client


async def _says_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return (await reader.readline()).split(b" ")[1:2] == [b"200"]
    finally:
        writer.close()
