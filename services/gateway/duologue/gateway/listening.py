"""The sockets of a gateway: the port of its clients, and the one of its operator.

Rule 1. Several gateways may share the clients' port (`reuse_port`): the kernel deals connections out among
        them. Which of them answers is chance, so each has a port of its own for what is asked of one process:
        `/metrics`, `/readyz`, `/health`, `/drain`. It speaks plain HTTP and lets no client in.
Rule 2. One that drains alone leaves the shared port at once, and one that starts listens there when it is ready:
        the others get what would be refused here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final

import uvicorn

from duologue.gateway.app import OperatorApp
from duologue.gateway.front_door import FrontDoor
from duologue.gateway.process import CannotStart
from duologue.gateway.service import GatewayService
from duologue.gateway.tls import FAREWELL_S, HANDSHAKE_S
from duologue.gateway.wire import RealtimeSocket
from duologue.runtime.grid import next_on_grid

BACKLOG: Final = 2048
CLOSE_S: Final = 2
"""How long uvicorn waits for sockets to finish their closing handshake."""
OPERATOR_CONNECTIONS: Final = 32
READY_S: Final = 5.0
READY_POLL_S: Final = 0.02
DATE_S: Final = 1.0
"""How often the date that answers carry is made anew; it has whole seconds."""


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """The listening socket; a shared one is bound only, and listens when it is served. Raises `CannotStart`: the
    port is in use, the address is not ours."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotStart(f"cannot listen on {host}:{port}: {error.strerror}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
        if not reuse_port:
            listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise CannotStart(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    return listening


def address_of(listening: socket.socket) -> str:
    """`host:port` as a URL has it."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process has its own. And with a bound on the TLS handshake, and told
    to end rather than looking ten times a second whether to: that was half of what an idle gateway was woken for."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._awake = asyncio.Event()

    def end(self) -> None:
        """Have `serve` close everything and return."""
        self.should_exit = True
        self._awake.set()

    async def main_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # 0: the tick at which uvicorn sets the date
            self._awake.clear()
            loop.call_at(next_on_grid(loop.time(), DATE_S), self._awake.set)
            await self._awake.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config = self.config
        handshake_s, farewell_s = (None, None) if config.ssl is None else (HANDSHAKE_S, FAREWELL_S)

        def connection() -> asyncio.Protocol:
            kind: Any = config.http_protocol_class
            made: asyncio.Protocol = kind(config=config, server_state=self.server_state, app_state=self.lifespan.state)
            return made

        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                connection,
                sock=at,
                ssl=config.ssl,
                backlog=BACKLOG,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=farewell_s,
            )
            for at in sockets or ()
        ]
        self.started = True
        self._on_started()

    def leave_port(self) -> None:
        """Take no further connections; those that are here stay."""
        for server in self.servers:
            server.close()


def _config(app: Any, door: FrontDoor, **more: Any) -> uvicorn.Config:
    """uvicorn as this service runs it. Its access log is off: it would write the query, tokens and all."""
    return uvicorn.Config(
        app,
        http=door.protocol(),
        lifespan="off",
        proxy_headers=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_S,
        **more,
    )


def _clients_server(service: GatewayService, tls: ssl.SSLContext | None) -> QuietServer:
    settings = service.gateway.settings
    config = _config(
        service.app,
        service.door,
        ws=RealtimeSocket,
        ws_max_size=settings.max_frame_bytes,
        ws_ping_interval=settings.ping_interval_s,
        ws_ping_timeout=settings.ping_interval_s,
        ws_per_message_deflate=False,
    )
    config.load()
    config.ssl = tls
    return QuietServer(config, service.port_taken)


def _operators_server(service: GatewayService) -> QuietServer:
    patience_s = service.gateway.settings.first_message_timeout_s
    door = FrontDoor(OPERATOR_CONNECTIONS, patience_s, lambda: service.gateway.tally.refused("connections"))
    return QuietServer(_config(OperatorApp(service.app.http), door, ws="none"))


@contextlib.asynccontextmanager
async def serving(
    service: GatewayService,
    clients: socket.socket,
    *,
    operator: socket.socket | None = None,
    tls: ssl.SSLContext | None = None,
    reuse_port: bool = False,
) -> AsyncGenerator[None, None]:
    """Connections are taken until the end, and closed then; on the operator's port last."""
    async with contextlib.AsyncExitStack() as stack:
        service.awaits_port = reuse_port
        if operator is not None:
            await stack.enter_async_context(_running(_operators_server(service), operator))
        server = _clients_server(service, tls)
        if reuse_port:
            await _ready_soon(service)
            service.leave_port = server.leave_port
        await stack.enter_async_context(_running(server, clients))
        yield


async def _ready_soon(service: GatewayService) -> None:
    """Until sessions can be opened here; or not, and then clients are told so."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            while service.cannot_open():  # noqa: ASYNC110 - it is the sum of store, shards, links and drain: no one event
                await asyncio.sleep(READY_POLL_S)


@contextlib.asynccontextmanager
async def _running(server: QuietServer, listening: socket.socket) -> AsyncGenerator[None, None]:
    work = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        server.end()
        await work
