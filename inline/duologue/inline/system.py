"""The whole system in one event loop: a gateway without a listening socket, a shard, and a worker for each group.

They are the product's own services; only what is between them is another: links in memory instead of ZeroMQ, the
in-memory store instead of Redis, `LocalSocket` instead of WebSockets. Engines have their own threads, as ever.

Rule 1. It is ready when `start` returns. Nothing is polled: links tell when they are up.
Rule 2. It ends in order: clients are told, sessions end, workers stop, and nothing of it is left running.
Rule 3. The process is its caller's: no signal handler, no exit, no change to its garbage collector.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from duologue.bus.endpoint import LinkEndpoint
from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.machine import LinkOptions
from duologue.bus.memory import MemoryHub
from duologue.bus.messages import AnyMessage
from duologue.gateway.client_socket import ClientSocket
from duologue.gateway.handshake import Offer
from duologue.gateway.process import granted_limits
from duologue.gateway.service import GatewayService
from duologue.inline.local_socket import LocalSocket
from duologue.model.catalog import find_pipeline
from duologue.model.pipeline import PipelineSpec
from duologue.protocol.duplex import Dialect
from duologue.runtime.incarnation import new_incarnation
from duologue.runtime.settings import SystemSettings
from duologue.session.core.ears import run_offload
from duologue.session.core.machine import DuplexSessionMachine
from duologue.session.detector import installed
from duologue.session.pipelines import load_served
from duologue.session.process import options_of
from duologue.session.shard import Shard
from duologue.stages.process import WorkerOptions, WorkerProcess
from duologue.store.journals import JournalLimits
from duologue.store.memory import MemoryStore

_log = logging.getLogger("duologue.inline")

PRINCIPAL: Final = "inline"
READY_S: Final = 30.0

End = Callable[[], Awaitable[None]]
"""Ends what was started, and waits for it. May be called again."""


class InlineSystem:
    """See the module. Raises what the services raise: PipelineError, ImportError of a model's library, OSError."""

    def __init__(self, settings: SystemSettings) -> None:
        self.settings = settings
        self.store: MemoryStore
        self.shard: Shard
        self._specs = [find_pipeline(name) for name in settings.pipelines]
        self._service: GatewayService
        self._changed = asyncio.Event()
        self._hub = MemoryHub()
        self._running = AsyncExitStack()
        self._sockets: dict[asyncio.Task[None], LocalSocket] = {}
        self.open = False

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring everything up. Nothing is left running if that fails."""
        async with AsyncExitStack() as stack:
            self.store = _store(self.settings)
            stack.callback(self.store.server.close)
            for group in dict.fromkeys(name for spec in self._specs for name in spec.workers):
                specs = [spec for spec in self._specs if spec.stages_of(group)]
                stack.push_async_callback(await self._start_worker(group, specs))
            end_shard = await self._start_shard()
            stack.push_async_callback(end_shard)
            await self._start_gateway(stack)
            stack.push_async_callback(self._end_sockets)
            stack.push_async_callback(end_shard)  # first: its last words go through the gateway
            self._running = stack.pop_all()
        self.open = True

    async def stop(self) -> None:
        """End every session and let go of everything."""
        self.open = False
        for socket in self._sockets.values():
            socket.let_pass()
        await self._running.aclose()

    async def _start_worker(self, group: str, specs: Sequence[PipelineSpec]) -> End:
        settings = self.settings
        worker = WorkerProcess(
            WorkerOptions(
                id=f"worker-{group}",
                group=group,
                orphan_s=settings.stages.orphan_slots_s,
                max_kept_bytes=settings.stages.pending_output_bytes,
                expiry_s=settings.bus.expiry_s,
            ),
            specs,
            registry=self.store.registry,
            make_endpoint=self._endpoint,
            leave=lambda code: _log.error("worker %s is given up: a step of an engine does not end", group),
            incarnation=new_incarnation(),
            owns_process=False,
        )
        await worker.start()
        asked = asyncio.Event()

        async def serve() -> None:
            await worker.stop(await worker.run(asked))

        return _ending(asked, serve(), worker.options.id)

    async def _start_shard(self) -> End:
        settings = self.settings
        session = settings.session
        self.shard = shard = Shard(
            options_of(settings, "shard"),
            pipelines=load_served(self._specs),
            store=self.store,
            make_endpoint=self._endpoint,
            open_machine=DuplexSessionMachine.open,
            offload_job=run_offload,
            detector=installed(session.voice_model, session.turn_model, session.detector_frames),
            incarnation=new_incarnation(),
        )
        await shard.start()
        asked = asyncio.Event()

        async def until_asked() -> None:
            await asked.wait()

        async def serve() -> None:
            try:
                await shard.run(until_asked())
            finally:
                await shard.stop()

        return _ending(asked, serve(), shard.options.id)

    async def _start_gateway(self, stack: AsyncExitStack) -> None:
        shard, incarnation = self.shard, new_incarnation()
        await self._until(lambda: all(shard.workers.ready(spec) for spec in self._specs))
        await shard.membership.beat()  # the gateway finds the models ready when it looks first
        self._service = service = GatewayService(
            self.settings.gateway,
            self.store,
            lambda handler: self._endpoint(Peer("gateway", "gateway", incarnation), handler),
            name="gateway",
            incarnation=incarnation,
            limits=granted_limits(self.settings),
        )
        await stack.enter_async_context(service.running())
        await self._until(lambda: not service.unready())

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(READY_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def _endpoint(self, me: Peer, handler: LinkHandler) -> LinkEndpoint:
        bus = self.settings.bus
        options = LinkOptions(
            window_bytes=bus.window_bytes,
            heartbeat_s=bus.heartbeat_s,
            expiry_s=bus.expiry_s,
            stall_s=bus.stall_s,
        )
        return self._hub.endpoint(me, _Watched(handler, self._changed), f"memory://{me.name}", options)

    # -- connections --------------------------------------------------------------------------------------

    def connect(self, model: str = "") -> LocalSocket:
        """A connection in the duplex dialect: the first frame opens or resumes a session."""
        socket = LocalSocket()
        offer = Offer(path="/v1/realtime", dialect=Dialect.duplex, model=model, no_autostart=True)
        client = ClientSocket(self._service.gateway, offer, PRINCIPAL, socket, socket.next_message)
        socket.server = client
        task = asyncio.create_task(client.run())
        self._sockets[task] = socket
        task.add_done_callback(self._sockets.pop)
        return socket

    def lives(self, session_id: str) -> bool:
        """Whether the session has not ended, attached or not."""
        return any(resident.session_id == session_id for resident in self.shard.manager.residents)

    async def _end_sockets(self) -> None:
        for socket in self._sockets.values():
            socket.finish(1012, "the system has ended")
        if self._sockets:
            await asyncio.wait(tuple(self._sockets))


def _ending(asked: asyncio.Event, work: Coroutine[Any, Any, None], name: str) -> End:
    """Run a service; what is answered asks it to end. A fault of it is logged when it happens."""
    task = asyncio.create_task(work)

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("%s has failed", name, exc_info=fault)

    async def end() -> None:
        asked.set()
        await asyncio.wait((task,))

    task.add_done_callback(ended)
    return end


class _Watched(LinkHandler):
    """A service's own handler; `changed` is set when a link comes up."""

    def __init__(self, handler: LinkHandler, changed: asyncio.Event) -> None:
        self._handler = handler
        self._changed = changed

    def on_ready(self, link: Link) -> None:
        self._handler.on_ready(link)
        self._changed.set()

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        self._handler.on_message(link, message, frames)

    def on_credit(self, link: Link) -> None:
        self._handler.on_credit(link)

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        self._handler.on_lost(link, lost)


def _store(settings: SystemSettings) -> MemoryStore:
    store = settings.store
    limits = JournalLimits(ttl_s=store.session_ttl_s, max_bytes=store.journal_max_bytes, max_age_s=store.journal_ttl_s)
    return MemoryStore(limits=limits, session_ttl_s=store.session_ttl_s)
