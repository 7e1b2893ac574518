"""A realtime server in the test's own loop, and a bridge's engine whose results are awaited there."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from duologue.model.engine import NO_UNIT, Emission, Slot, StageUnit
from duologue.model.outputs import ModelOutput, decode_output
from duologue.models.bridge import heads
from duologue.models.bridge.engine import BridgeEngine
from duologue.models.bridge.heads import SlotConfig, UnitHead
from duologue.models.bridge.options import Options

Event = dict[str, Any]
PATIENCE_S = 20.0


class Upstream:
    """`received`: what came, of all sockets. `status`: how it refuses the upgrade. `opens`: it opens sessions."""

    def __init__(
        self, dialect: str = "duplex", *, status: int = 0, opens: bool = True, tls: ssl.SSLContext | None = None
    ) -> None:
        self.dialect = dialect
        self.tls = tls
        self.status = status
        self.opens = opens
        self.resumes = True
        self.received: list[Event] = []
        self.requests: list[Request] = []
        self.sockets: list[ServerConnection] = []
        self._news = asyncio.Condition()
        self._server: Server

    async def __aenter__(self) -> Self:
        more = {"process_request": self._upgrade, "max_size": None, "ssl": self.tls}
        self._server = await serve(self._serve, "127.0.0.1", 0, **more)  # type: ignore[arg-type]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        scheme = "ws" if self.tls is None else "wss"
        return f"{scheme}://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}/v1/realtime?kept=1"

    def _upgrade(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        return Response(self.status, "No", Headers(), b"") if self.status else None

    async def _serve(self, ws: ServerConnection) -> None:
        self.sockets.append(ws)
        if self.dialect == "openai":
            await self.say("session.created", session={"id": "up"})
        try:
            async for frame in ws:
                await self._took(json.loads(frame))
        except ConnectionClosed:
            return
        finally:
            async with self._news:
                self._news.notify_all()

    async def _took(self, event: Event) -> None:
        async with self._news:
            self.received.append(event)
            self._news.notify_all()
        if event["type"] == "session.update" and self.opens and len(self.of("session.update")) == len(self.sockets):
            if self.dialect == "duplex":
                await self.say("session.created", session={"id": "up"}, resume_token="t1")
            await self.say("session.updated", session={})
        elif event["type"] == "session.resume":
            if self.resumes:
                await self.say("session.resumed", session_id="up", resume_token="t2", last_client_event_id=None)
            else:
                await self.say("error", error={"code": "session_resume_expired", "message": "gone"})

    async def say(self, kind: str, **fields: Any) -> None:
        await self.sockets[-1].send(json.dumps({"type": kind, "event_id": "e", **fields}))

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.received if event["type"] in kinds]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: bool(holds()))

    async def has(self, kind: str, count: int = 1) -> list[Event]:
        await self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)


class Worker:
    """The engine as a stage worker runs it, in one thread: this one."""

    def __init__(self, url: str, dialect: str = "duplex", *, slots: int = 4, **more: Any) -> None:
        options = Options(url=url, dialect=dialect, **more)  # type: ignore[arg-type]
        self.engine = BridgeEngine("bridge", options, slots)
        self.emissions: list[Emission] = []
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self.engine.wake = self._ring
        self.engine.warm_up()
        self._units = 0

    def _ring(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.engine.shut_down)

    def open(self, index: int = 0, *, auto: bool = True, incarnation: int = 1) -> Slot:
        slot = Slot(index, incarnation)
        config = SlotConfig(modalities=("text", "audio"), auto=auto, speaks_duplex=True)
        self.engine.open(slot, heads.encode(config))
        return slot

    def append(self, slot: Slot, flags: int = heads.AUTO, pcm: bytes = bytes(5120)) -> Emission:
        self._units += 1
        unit = StageUnit(slot, self._units, 3, 0, 0, heads.encode(UnitHead(flags)), (pcm,))
        (emission,) = self.engine.append_batch([unit])
        return emission

    async def until(self, holds: Callable[[Emission], bool]) -> Emission:
        """The first result between appends of which this holds."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self._news.clear()
                self.emissions += self.engine.read()
                found = next(filter(holds, self.emissions), None)
                if found is not None:
                    assert found.unit == NO_UNIT
                    return found
                await self._news.wait()

    async def output(self, holds: Callable[[ModelOutput], object]) -> ModelOutput:
        emission = await self.until(lambda one: one.failure is None and bool(holds(decode_output(one.head))))
        return decode_output(emission.head)

    async def listening(self) -> None:
        """Keep taking what comes until somebody cancels."""
        while True:
            self._news.clear()
            self.emissions += self.engine.read()
            await self._news.wait()
