"""A gateway that really listens, in front of fake shards, with everything else in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import dialect_judge
from unit.gateway.fake_shard import FakeShard
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from duologue.bus.link import Peer
from duologue.bus.memory import MemoryHub
from duologue.gateway.listening import bind, serving
from duologue.gateway.service import GatewayService
from duologue.runtime.settings import GatewaySettings
from duologue.store.memory import MemoryStore

Event = dict[str, Any]
WAIT_S = 5.0
OWN = ("session.created", "error")
"""What a gateway says by itself: the rest is the fake shard's."""


class Client:
    """One raw client socket."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.log: list[Event] = []
        asked = ws.request
        assert asked is not None
        self.dialect = dialect_judge.dialect_of(asked.path, dict(asked.headers.raw_items()))

    async def send(self, type_: str, **fields: Any) -> None:
        await self.ws.send(json.dumps({"type": type_, **fields}))

    async def next(self) -> Event:
        async with asyncio.timeout(WAIT_S):
            body = await self.ws.recv()
        event: Event = json.loads(body)
        if event["type"] in OWN:
            dialect_judge.judge([body], self.dialect)
        self.log.append(event)
        return event

    async def until(self, type_: str) -> Event:
        while (event := await self.next())["type"] != type_:
            pass
        return event

    async def closing(self) -> tuple[int | None, str | None]:
        """Read to the end; the close code and reason."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.ws.close_code, self.ws.close_reason

    def types(self) -> list[str]:
        return [event["type"] for event in self.log]


class System:
    """One store, one bus, one fake shard, any number of gateways."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.store = MemoryStore()
        self.shard = FakeShard(self.hub, self.store)
        self.services: list[GatewayService] = []
        self.urls: list[str] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> System:
        await self.shard.endpoint.start()
        self._stack.push_async_callback(self.shard.endpoint.close)
        self.shard.register()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def gateway(self, name: str = "gateway-1", **config: Any) -> GatewayService:
        """One more gateway, ready to take sockets."""
        incarnation = f"{name}-a"
        service = GatewayService(
            GatewaySettings(host="127.0.0.1", port=0, **config),
            self.store,
            lambda handler: self.hub.endpoint(Peer(name, "gateway", incarnation), handler),
            name=name,
            incarnation=incarnation,
        )
        await self._stack.enter_async_context(service.running())
        url = await self._stack.enter_async_context(listening(service))
        async with asyncio.timeout(WAIT_S):
            await service.links.reach(self.shard.incarnation, WAIT_S)
        self.services.append(service)
        self.urls.append(url)
        return service

    async def connect(self, path: str = "/v1/realtime?duplex=1", *, at: int = 0, **options: Any) -> Client:
        options = {"max_size": None, "proxy": None, "ping_interval": None, "close_timeout": 1, **options}
        ws = await connect(f"ws://{self.urls[at]}{path}", **options)

        async def bye() -> None:
            if ws.close_code is None:
                await ws.close()

        self._stack.push_async_callback(bye)
        return Client(ws)

    async def open(self, **options: Any) -> tuple[Client, Event]:
        """A duplex session; its client and its `session.created`."""
        client = await self.connect(**options)
        await client.send("session.update", session={"model": "loopback"})
        created = await client.next()
        assert created["type"] == "session.created", created
        await client.until("session.updated")
        return client, created

    async def resume(self, created: Event, after: int, **options: Any) -> Client:
        client = await self.connect(**options)
        await client.send(
            "session.resume",
            session_id=created["session"]["id"],
            resume_token=created["resume_token"],
            last_received_server_event_seq=after,
        )
        return client


@contextlib.asynccontextmanager
async def listening(service: GatewayService) -> AsyncIterator[str]:
    at = bind("127.0.0.1", 0)
    host, port = at.getsockname()
    async with serving(service, at):
        yield f"{host}:{port}"
        for client in list(service.gateway.sockets):
            client.restart()


async def turn() -> None:
    """Let what was sent in this turn of the loop arrive."""
    for _ in range(10):
        await asyncio.sleep(0)


async def until(system: System, happened: Callable[[], object]) -> None:
    """Until the shard has heard what makes it happen."""
    async with asyncio.timeout(WAIT_S):
        while not happened():
            system.shard.heard.clear()
            await system.shard.heard.wait()
