"""A socket that is none: the gateway's `Wire` at one end, whoever holds the session in this process at the other.

Rule 1. It behaves as a WebSocket: text frames in order, one end, a close code. A frame that the gateway cannot
        finish at once is queued, and nothing more is taken until it is worked off.
Rule 2. What nobody reads is bounded as on a socket: at `ROOM_BYTES` the gateway takes no further events, and the
        session's output limits decide what becomes of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from duologue.client.transport import Transport, TransportClosed
from duologue.gateway.gathering import Gathering
from duologue.gateway.wire import LINGER_S, REST, ROOM_BYTES
from duologue.protocol.duplex import DuplexCommand

ABNORMAL = 1006
Message = dict[str, Any]


class Server(Protocol):
    """What the socket needs of the gateway's `ClientSocket`."""

    def take(self, command: DuplexCommand) -> object | None: ...


class LocalSocket(Transport):
    """One connection. Of `Wire` are `write`, `has_room`, `finish` and the attributes; `next_message` is ASGI's
    receive. The rest is for the holder of the session."""

    def __init__(self) -> None:
        self.on_room: Callable[[], None] | None = None
        self.sink: Callable[[str], object | None] | None = None
        self.gathering: Gathering | None = None
        self.close_code = ABNORMAL
        self.close_reason = ""
        self.clean = False
        self.server: Server | None = None
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._inbox: deque[Message] = deque()
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._full = False
        self._unbounded = False
        self._arrived = asyncio.Event()
        self._worked_off = asyncio.Event()
        self._written = asyncio.Event()
        self._ended = asyncio.Event()
        self._sending = asyncio.Lock()

    # -- the gateway's end --------------------------------------------------------------------------------

    def write(self, *payloads: bytes) -> None:
        if self._open:
            self._outbox.extend(payloads)
            self._outbox_bytes += sum(map(len, payloads))
            self._full = self._outbox_bytes >= ROOM_BYTES
            self._written.set()

    def has_room(self) -> bool:
        return self._unbounded or not self._full

    @property
    def is_open(self) -> bool:
        return self._open

    def finish(self, code: int, reason: str = "", linger_s: float = LINGER_S) -> None:
        self._end(code, reason)

    async def next_message(self) -> Message:
        """The next message of this connection, as ASGI has them."""
        while not self._inbox:
            self._worked_off.set()
            self._arrived.clear()
            await self._arrived.wait()
        message = self._inbox.popleft()
        if not self._inbox:
            self._worked_off.set()
        return message

    # -- the holder's end ---------------------------------------------------------------------------------

    async def send(self, frame: str) -> None:
        async with self._sending:
            await self._turn()
            sink = self.sink
            if sink is None:
                self._put({"type": "websocket.receive", "text": frame})
            elif (rest := sink(frame)) is not None:
                self._put({"type": REST, "rest": rest})

    async def submit(self, command: DuplexCommand) -> None:
        """Give a command to the session as it is, without a frame. Raises TransportClosed."""
        async with self._sending:
            await self._turn()
            assert self.server is not None
            if (rest := self.server.take(command)) is not None:
                self._put({"type": REST, "rest": rest})

    def acknowledge(self, command: DuplexCommand) -> bool:
        """As `submit`, of what never waits. False: the gateway has other work first, and nothing was taken. Whoever
        reads must not wait for a gateway that waits for its reader."""
        if self.sink is None or self._inbox or self.server is None:
            return False
        if (rest := self.server.take(command)) is not None:
            self._put({"type": REST, "rest": rest})
        return True

    async def _turn(self) -> None:
        """Let everybody else run, and until the gateway takes a message."""
        await asyncio.sleep(0)
        while self._open and self._inbox:
            self._worked_off.clear()
            await self._worked_off.wait()
        if not self._open:
            raise TransportClosed(self.close_code, self.close_reason)

    def _put(self, message: Message) -> None:
        self._inbox.append(message)
        self._arrived.set()

    async def receive(self) -> bytes:
        while not self._outbox:
            if not self._open:
                raise TransportClosed(self.close_code, self.close_reason)
            self._written.clear()
            await self._written.wait()
        frame = self._outbox.popleft()
        self._outbox_bytes -= len(frame)
        if self._full and self._outbox_bytes <= ROOM_BYTES // 2:
            self._full = False
            self._tell_room()
        return frame

    async def close(self) -> None:
        self._leave(1000)

    def abort(self) -> None:
        self._leave(ABNORMAL)

    async def gone(self) -> None:
        """Until the connection has ended."""
        await self._ended.wait()

    def let_pass(self) -> None:
        """Nobody may read any more, and the end must get through: take whatever comes. What that can be is bounded
        by the session's own output limits."""
        self._unbounded = True
        self._tell_room()

    def _leave(self, code: int) -> None:
        if self._open:
            self.clean = code == 1000
            self._outbox.clear()
            self._outbox_bytes = 0
            self._end(code, "")

    def _end(self, code: int, reason: str) -> None:
        if not self._open:
            return
        self._open, self._full = False, False
        self.close_code, self.close_reason = code, reason
        self._put({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._worked_off.set()
        self._written.set()
        self._ended.set()
        self._loop.call_soon(self._tell_room)  # never from inside of what the gateway is doing

    def _tell_room(self) -> None:
        if self.on_room is not None:
            self.on_room()
