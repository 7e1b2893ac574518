"""A WebSocket between a simulated client and a gateway: what uvicorn's protocol does, without a socket.

The server's end is an ASGI connection and a `Wire`; the client's end calls back. Either direction is a pipe with
latency, first in, first out; a client may stop reading, and the connection may go without anybody being told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from duologue.gateway.wire import EXTENSION, LINGER_S, REST, ROOM_BYTES

if TYPE_CHECKING:
    from simulation.nodes import GatewayNode
    from simulation.record import Record
    from simulation.world import World

LATENCY_S = (0.0005, 0.004)
ABNORMAL = 1006

Event = dict[str, Any]
Message = MutableMapping[str, Any]


class ClientEnd(Protocol):
    """Whoever opened the connection."""

    def on_open(self, socket: Socket) -> None: ...

    def on_refused(self, socket: Socket, status: int) -> None: ...

    def on_frame(self, socket: Socket, event: Event, size: int) -> None: ...

    def on_closed(self, socket: Socket, code: int, reason: str) -> None: ...


class Pipe:
    """One direction. `bytes` is what was put in and has not come out."""

    def __init__(self, world: World, out: Callable[[Any], None]) -> None:
        self._world = world
        self._out = out
        self._under_way: deque[tuple[float, int, Any]] = deque()
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._frozen = False
        self._cut = False
        self.bytes = 0

    def put(self, item: Any, size: int = 0) -> None:
        if self._cut:
            return
        due = max(self._last, self._world.now + self._world.random.uniform(*LATENCY_S))
        self._last = due
        self.bytes += size
        self._under_way.append((due, size, item))
        self._arm()

    def freeze(self, frozen: bool) -> None:
        """Nothing comes out while it is frozen."""
        self._frozen = frozen
        self._arm()

    def cut(self) -> None:
        """What is under way is lost."""
        self._cut = True
        self._under_way.clear()
        self.bytes = 0

    def _arm(self) -> None:
        if self._timer is None and self._under_way and not self._frozen:
            self._timer = self._world.loop.call_at(self._under_way[0][0], self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._world.now
        while self._under_way and self._under_way[0][0] <= now and not self._frozen:
            _, size, item = self._under_way.popleft()
            self.bytes -= size
            self._out(item)
        self._arm()


class Socket:
    """One connection. The methods of the product's `Wire` are the server's; those of the client say so."""

    def __init__(self, world: World, gateway: GatewayNode, client: ClientEnd, record: Record, query: str) -> None:
        self.world = world
        self.gateway = gateway
        self.record = record
        self.on_room: Callable[[], None] | None = None
        self.sink: Callable[[str], object | None] | None = None
        self.close_code = ABNORMAL
        self.clean = False
        self.session_id = ""
        """The session whose events it carries, once the gateway has said so; its client may be at another by then."""
        self._client = client
        self._query = query
        self._to_client = Pipe(world, self._at_client)
        self._to_server = Pipe(world, self._at_server)
        self._inbox: deque[Message] = deque([{"type": "websocket.connect"}])
        self._waiter: asyncio.Future[None] | None = None
        self._accepted = False
        self._close_sent = False
        self._lost = False
        self._full = False
        self._client_gone = False

    # -- the server's end: ASGI ------------------------------------------------------------------------

    @property
    def scope(self) -> dict[str, Any]:
        return {
            "type": "websocket",
            "path": "/v1/realtime",
            "query_string": self._query.encode(),
            "headers": [(b"host", b"sim")],
            "subprotocols": [],
            "extensions": {EXTENSION: self},
        }

    async def receive(self) -> Message:
        while not self._inbox:
            self._waiter = self.world.loop.create_future()
            await self._waiter
        return self._inbox.popleft()

    async def send(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            self._accepted = True
            self._to_client.put(("open", None))
        elif message["type"] == "websocket.http.response.start":
            self._lost = True
            self._to_client.put(("refused", message["status"]))

    def served(self) -> None:
        """The application has returned."""
        if self.is_open:
            self.world.fail("the gateway left a socket open that nobody serves")

    def _receive(self, message: Message) -> None:
        self._inbox.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the server's end: Wire ------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._accepted and not self._close_sent and not self._lost

    def has_room(self) -> bool:
        return not self._full and self._to_client.bytes < ROOM_BYTES

    def write(self, *payloads: bytes) -> None:
        if not self.is_open:
            return
        for payload in payloads:
            event = self.world.witness.written(self, payload)
            self.world.written = crc32(payload, self.world.written)
            self._to_client.put(("frame", (event, len(payload))), len(payload))
        if self._to_client.bytes > ROOM_BYTES:
            self._full = True

    def finish(self, code: int, reason: str = "", linger_s: float = LINGER_S) -> None:
        if not self.is_open:
            return
        self._close_sent = True
        self.close_code = code
        self._to_client.put(("close", (code, reason)))
        self._receive({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.world.loop.call_later(linger_s, self._abort)

    def _abort(self) -> None:
        """The connection is dropped, whatever the client has read."""
        if not self._client_gone:
            self._to_client.cut()
            self._tell_closed(ABNORMAL, "")
        self._lose()

    def _lose(self) -> None:
        if self._lost:
            return
        self._lost = True
        self._full = False
        self._to_client.cut()
        self._receive({"type": "websocket.disconnect", "code": ABNORMAL})
        self._call_on_room()

    def _call_on_room(self) -> None:
        if self.on_room is not None and self.gateway.alive:
            with self.gateway.here():
                self.on_room()

    def server_died(self) -> None:
        """The gateway's process is gone. The client finds out soon."""
        self._lost = True
        self.on_room = self.sink = None
        self._to_client.cut()
        self.world.loop.call_later(self.world.random.uniform(0.001, 0.05), self._tell_closed, ABNORMAL, "")

    def _at_server(self, item: Any) -> None:
        kind, what = item
        if self._lost or not self.gateway.alive:
            return
        if kind == "text":
            if not self._close_sent:
                self._heard(what)
        elif kind == "close":
            if not self._close_sent:
                self.close_code, self.clean = what, what in (1000, 1005)
                self._receive({"type": "websocket.disconnect", "code": what})
            self._lost = True
            self._call_on_room()

    def _heard(self, text: str) -> None:
        """As uvicorn's protocol does it with `sink`; what it cannot finish keeps the rest unread."""
        if self.sink is None or self._inbox:
            return self._receive({"type": "websocket.receive", "text": text})
        with self.gateway.here():
            rest = self.sink(text)
        if rest is not None:
            self._receive({"type": REST, "rest": rest})
        return None

    # -- the client's end ------------------------------------------------------------------------------

    def send_text(self, text: str) -> None:
        """From the client."""
        if not self._client_gone:
            self._to_server.put(("text", text))

    def block(self, blocked: bool) -> None:
        """The client stops reading, or reads again."""
        self._to_client.freeze(blocked)

    def vanish(self, noticed_after_s: float) -> None:
        """The client's end is gone without a word; the server notices later."""
        self._client_gone = True
        self._to_server.cut()
        self._to_client.freeze(True)
        self.world.loop.call_later(noticed_after_s, self._lose)

    def _at_client(self, item: Any) -> None:
        kind, what = item
        if self._full and self._to_client.bytes <= ROOM_BYTES // 2:
            self._full = False
            self._call_on_room()
        if self._client_gone:
            return
        if kind == "frame":
            self._client.on_frame(self, *what)
        elif kind == "open":
            self._client.on_open(self)
        elif kind == "refused":
            self._client_gone = True
            self._client.on_refused(self, what)
        else:
            self._to_server.put(("close", what[0]))
            self._tell_closed(*what)

    def _tell_closed(self, code: int, reason: str) -> None:
        if not self._client_gone:
            self._client_gone = True
            self._client.on_closed(self, code, reason)
