"""A TCP relay between a client and the server: it passes bytes, keeps what the server wrote, and can cut.

Rule 1. No byte is changed, so what meets is the real client and the real server, compression and TLS included.
Rule 2. A cut is a reset (RST) in both directions: nobody is told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Self

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass
class Line:
    """One connection, and all bytes that the server wrote to it."""

    downstream: asyncio.StreamWriter
    upstream: asyncio.StreamWriter
    written: bytearray = field(default_factory=bytearray)
    cut: bool = False

    def reset(self) -> None:
        self.cut = True
        for writer in (self.downstream, self.upstream):
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()


class Relay:
    """Listens on a free port; each connection goes to the first of `targets` that accepts it."""

    def __init__(self, targets: list[int]) -> None:
        self._targets = list(targets)
        self.lines: list[Line] = []
        self.port = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for line in self.lines:
                line.reset()

    def cut(self) -> int:
        """Reset what is open; how many lines that were."""
        open_lines = [line for line in self.lines if not line.downstream.is_closing()]
        for line in open_lines:
            line.reset()
        return len(open_lines)

    def turn(self) -> int:
        """From now on prefer the next target; the port of the one that was preferred."""
        self._targets.append(self._targets.pop(0))
        return self._targets[-1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        line = Line(writer, up_writer)
        self.lines.append(line)
        await asyncio.gather(_pass(reader, up_writer, None), _pass(up_reader, writer, line.written))

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for port in self._targets:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
        raise OSError("no gateway accepts connections")


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            if kept is not None:
                kept += data
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(ConnectionError, OSError, RuntimeError):
        writer.close()
