"""The bus as processes use it: ZeroMQ, and beside each ipc socket of it a stream for who dials on this machine.

The address that is told stays the one of the ZeroMQ socket. Whoever can looks for the stream beside it first; an
older release, and who finds none, takes ZeroMQ. So both speak to both, and nothing has to be agreed on.

Rule 1. A stream is only ever beside ipc: by tcp, and with keys, there is ZeroMQ alone.
Rule 2. A stream that ends is dialled anew, like any connection; what cannot be a stream is a ZeroMQ connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from duologue.bus.driven import Connection, Written
from duologue.bus.endpoint import MAX_PEERS, Broke
from duologue.bus.errors import BusError
from duologue.bus.link import Frame
from duologue.bus.stream import StreamConnection, StreamListener, connected, scratch
from duologue.bus.zmq import ZmqEndpoint
from duologue.bus.zmq_options import IPC_PATH_MAX, clear_stale_ipc

_log = logging.getLogger("duologue.bus")

SUFFIX: Final = "+"
"""Of the stream's file: the path of a socket is short."""
_IPC: Final = "ipc://"
_KEY: Final = b"\0stream-"
"""What names an accepted stream among the identities of a ROUTER: none of those begins like that."""


class _AcceptedStream(Connection):
    """A peer that dialled us, on a connection of its own."""

    def __init__(self, stream: StreamConnection) -> None:
        self._stream = stream

    def write(self, parts: Sequence[Frame]) -> Written:
        return self._stream.write(parts)

    def close(self) -> None:
        """Whoever dialled closes, when it has read to the end; as with a ROUTER."""


class LocalEndpoint(ZmqEndpoint):
    """See the module. Used as the endpoint that it is made from."""

    _listener: StreamListener | None = None
    _count = 0
    _linger_s = 0.0

    async def start(self) -> None:
        self._space = scratch()
        self._streams: dict[StreamConnection, None] = {}
        """All that are open or still linger."""
        self._none_left = asyncio.Event()
        await super().start()

    @property
    def streams(self) -> int:
        """Connections to peers on this machine that go without ZeroMQ."""
        return len(self._streams)

    # -- listening -------------------------------------------------------------------------------------

    def _begin_listening(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        super()._begin_listening(context)
        path = self._address.removeprefix(_IPC) + SUFFIX
        if not self._address.startswith(_IPC) or len(path.encode()) > IPC_PATH_MAX:
            return
        try:
            clear_stale_ipc(_IPC + path)
            self._listener = StreamListener(path, asyncio.get_running_loop(), self._let_in)
        except (BusError, OSError) as error:
            _log.warning("peers on this machine dial by ZeroMQ alone: %s", error)

    def _let_in(self, sock: sockets.socket) -> None:
        if len(self._streams) >= 2 * MAX_PEERS:
            sock.close()
            return
        self._count += 1
        key = _KEY + self._count.to_bytes(8, "big")

        def heard(parts: list[bytes]) -> None:
            self._heard_accepted(key, parts, make)

        def make(_: bytes) -> Connection:
            return _AcceptedStream(stream)

        def ended() -> None:
            link = self._accepted.get(key)
            if link is not None:
                link.end("closed", tell=False)

        stream = self._stream(sock, heard, ended)

    # -- dialling --------------------------------------------------------------------------------------

    def _connect(self, address: str, heard: Callable[[Sequence[bytes]], None], broke: Broke) -> Connection:
        if self._curve is None and address.startswith(_IPC):
            sock = connected(address.removeprefix(_IPC) + SUFFIX)
            if sock is not None:
                return self._stream(sock, heard, lambda: broke(for_good=True))
        return super()._connect(address, heard, broke)

    def _stream(
        self, sock: sockets.socket, heard: Callable[[list[bytes]], None], ended: Callable[[], None]
    ) -> StreamConnection:
        stream = StreamConnection(sock, self.loop, self._space, heard, ended, self._retry_stuck, self._stream_gone)
        stream.linger_s = self._zmq_options.linger_ms / 1000
        self._streams[stream] = None
        return stream

    def _stream_gone(self, stream: StreamConnection) -> None:
        self._streams.pop(stream, None)
        if not self._streams:
            self._none_left.set()

    # -- the end ---------------------------------------------------------------------------------------

    def _finish(self, *, tell: bool = True) -> None:
        super()._finish(tell=tell)
        if self._listener is not None:
            self._listener.close()
        for stream in list(self._streams):
            stream.close()

    async def _shut(self, *, tell: bool, linger_ms: int) -> None:
        if self._context is None:
            return
        for stream in self._streams:
            stream.linger_s = linger_ms / 1000
        await super()._shut(tell=tell, linger_ms=linger_ms)
        self._none_left.clear()
        if self._streams:  # each for as long as it may linger
            await self._none_left.wait()
