"""Calls on one connection, written once per turn of the event loop and answered in their order.

A call of redis-py takes a connection from a pool, a task, three time-outs and two hundred functions; this one takes a
future. It matters where a process makes many small calls: a checkpoint for each session and second, two beats a second.

Rule 1. Replies come in the order of the commands: one FIFO of futures is all the bookkeeping. A caller that is
        cancelled leaves its future behind, so nobody ever reads the reply of another.
Rule 2. A call that was not answered within `timeout_s` ends its connection, since what is behind it waits as well.
Rule 3. A call whose connection turns out dead is sent again once, on a new one, within its time: what is sent here is
        idempotent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import hiredis

from duologue.store.redis_address import RedisAddress, parse_address

pack: Final[Callable[[tuple[Any, ...]], bytes]] = hiredis.pack_command


class ScriptLine:
    """One process's calls to the server at `url`. It connects when it is first asked, and again whenever it has to."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._address: RedisAddress = parse_address(url)
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None

    @property
    def waiting(self) -> int:
        """Calls that are written and not answered."""
        return 0 if self._connection is None else len(self._connection.waiting)

    async def call(self, command: bytes) -> Any:
        """The reply to a packed command. Raises `OSError` (`TimeoutError` included) and `hiredis.ReplyError`."""
        until = asyncio.get_running_loop().time() + self._timeout_s
        connection = self._connection
        if connection is not None and not connection.closed:
            try:
                return _answer(await connection.ask(command))
            except TimeoutError:
                raise
            except OSError:
                pass  # rule 3
        async with asyncio.timeout_at(until):
            connection = await self._connected()
            return _answer(await connection.ask(command))

    async def _connected(self) -> _Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name="store-connect")
            self._connecting.add_done_callback(self._connect_ended)
        return await asyncio.shield(self._connecting)

    def _connect_ended(self, task: asyncio.Task[_Connection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # whoever still waits is told; nobody may

    async def _connect(self) -> _Connection:
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._address.connect(lambda: _Connection(self._timeout_s))
                for command in self._address.greeting():
                    reply = await connection.ask(pack(command))
                    if isinstance(reply, hiredis.ReplyError):
                        raise ConnectionRefusedError(str(reply))
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        self._connection = connection
        return connection

    def drop(self) -> None:
        """Look where the address leads by now at the next call; what is out is sent again there."""
        if self._connection is not None:
            self._connection.close()

    async def close(self) -> None:
        """Wait for the calls that are out (each is bounded), then close."""
        if self._connecting is not None:
            await asyncio.wait((self._connecting,))
        if self._connection is not None:
            await self._connection.drained()
            self._connection.close()


class _Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, timeout_s: float) -> None:
        self.waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        """Whom the next replies are for, and until when."""
        self.closed = False
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader()
        self._out: list[bytes] = []
        self._watchdog: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._loop = asyncio.get_running_loop()

    def ask(self, command: bytes) -> asyncio.Future[Any]:
        """Its result is the reply, an error of the server included. Its exceptions are `OSError`s."""
        asked: asyncio.Future[Any] = self._loop.create_future()
        if self.closed:  # it was lost before its first call: nothing would ever end this one
            asked.set_exception(ConnectionResetError("the connection was lost"))
            return asked
        if not self._out:
            self._loop.call_soon(self._flush)
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._timeout_s, self._watch)
        self._out.append(command)
        self.waiting.append((asked, self._loop.time() + self._timeout_s))
        return asked

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not self.closed:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _watch(self) -> None:
        self._watchdog = None
        now = self._loop.time()
        late = False
        while self.waiting and self.waiting[0][1] <= now:
            late = True
            asked = self.waiting.popleft()[0]
            if not asked.done():
                asked.set_exception(TimeoutError("the server does not answer"))
        if late:
            self.close()
        elif self.waiting:
            self._watchdog = self._loop.call_at(self.waiting[0][1], self._watch)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while True:
            try:
                reply = self._reader.gets()
            except hiredis.ProtocolError:
                return self.close()
            if reply is False:
                break
            if not self.waiting:  # nobody asked for it: what follows cannot be matched either
                return self.close()
            asked = self.waiting.popleft()[0]
            if not asked.done():
                asked.set_result(reply)
        if not self.waiting and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)
        return None

    async def drained(self) -> None:
        """Until nothing is out any more."""
        if self.waiting:
            self._empty = self._loop.create_future()
            await self._empty

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def close(self) -> None:
        """Give the connection up at once: what is out ends with `ConnectionResetError`."""
        self._transport.abort()
        self._end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        waiting, self.waiting = self.waiting, deque()
        for asked, _ in waiting:
            if not asked.done():
                asked.set_exception(ConnectionResetError("the connection was lost"))
        if self._empty is not None and not self._empty.done():
            self._empty.set_result(None)


def _answer(reply: Any) -> Any:
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply
