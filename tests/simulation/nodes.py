"""The processes of a simulated world: the product's own services, each with its line to the store and its place
on the bus.

Rule 1. Whatever is created while a process is at work belongs to it (`here`), so that a kill takes all of it.
Rule 2. A killed process says nothing any more, to anybody: its links, its sockets and its line to the store are
        dead before its tasks are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager
from contextvars import Context, ContextVar, Token
from typing import TYPE_CHECKING, Any

from simulation.store_line import Stores

from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.machine import LinkOptions
from duologue.bus.memory import MemoryEndpoint
from duologue.bus.messages import AnyMessage, Invalidate
from duologue.gateway.service import GatewayService
from duologue.model.engine import StageEngine
from duologue.model.pipeline import PipelineSpec
from duologue.runtime.settings import GatewaySettings
from duologue.session.core import run_offload
from duologue.session.core.limits import SessionLimits
from duologue.session.core.machine import DuplexSessionMachine
from duologue.session.pipelines import Pipelines
from duologue.session.shard import Shard, ShardOptions
from duologue.stages.hosted import HostedStage
from duologue.stages.loading import build, stages_of
from duologue.stages.registration import WorkerRegistration, describe
from duologue.stages.step import Done, Work, perform
from duologue.stages.step_loop import Steps
from duologue.stages.worker import StageWorker
from duologue.store.memory import run_now
from duologue.store.ports import StoreUnavailable

if TYPE_CHECKING:
    from simulation.network import Socket
    from simulation.world import World

_at_work: ContextVar[Node | None] = ContextVar("process", default=None)


def process_of(handle: asyncio.Handle) -> Node | None:
    """Whose a callback is."""
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(_at_work)


def make_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **how: Any) -> asyncio.Task[Any]:
    """The loop's task factory: a task belongs to the process that was at work when it was made."""
    task = asyncio.Task(work, loop=loop, **how)
    node = _at_work.get()
    if node is not None:
        node.tasks[task] = None
        task.add_done_callback(node.ended)
    return task


class _Here:
    """A `with` block: what happens in it, this process does."""

    __slots__ = ("_node", "_token")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._token: Token[Node | None]

    def __enter__(self) -> None:
        self._token = _at_work.set(self._node)

    def __exit__(self, *_: object) -> None:
        _at_work.reset(self._token)


class Node:
    """One process."""

    def __init__(self, world: World, name: str, kind: str) -> None:
        self.world = world
        self.name = name
        self.kind = kind
        self.incarnation = world.incarnation(name)
        self.alive = True
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.held: list[asyncio.Handle] | None = None
        """Not None: the process is stopped, and this is what it will do when it goes on."""
        self.stores = Stores(world.depot, self)
        self.endpoint: MemoryEndpoint

    def here(self) -> _Here:
        """This process is at work."""
        return _Here(self)

    def ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)
        if self.alive and not task.cancelled() and task._log_traceback:
            self.world.loop.call_soon(self._judge, task)  # whoever waits for it takes its error in this same turn

    def _judge(self, task: asyncio.Task[Any]) -> None:
        """An error that nobody has taken is nobody's business, and so lost in a real process."""
        if self.alive and task._log_traceback:
            error = task.exception()
            self.world.fail(f"{self.name}: a task failed: {type(error).__name__}: {error}")

    def stop_still(self) -> None:
        """As SIGSTOP does it: nothing of it happens, and what others send waits."""
        self.held = []
        self.endpoint.freeze()

    def go_on(self) -> None:
        """As SIGCONT does it."""
        held, self.held = self.held or [], None
        self.endpoint.thaw()
        self.world.loop.go_on(held)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        with self.here():
            return self.world.loop.create_task(work)

    async def start(self) -> bool:
        """False: it cannot start now, and is gone."""
        raise AssertionError("a kind of process starts in its own way")

    async def stop(self) -> None:
        """End in good order."""
        raise AssertionError("a kind of process ends in its own way")

    def _endpoint(self, handler: LinkHandler, bind: str = "") -> MemoryEndpoint:
        peer = Peer(self.name, self.kind, self.incarnation)
        options = LinkOptions(window_bytes=self.world.window_bytes)
        self.endpoint = self.world.hub.endpoint(peer, _Watched(self, handler), bind, options)
        return self.endpoint

    @property
    def credit_exhausted(self) -> int:
        return sum(link.credit_exhausted for link in self.endpoint.stats.links.values())


class _Watched(LinkHandler):
    """A process's own handler, with the process at work while it is called."""

    def __init__(self, node: Node, handler: LinkHandler) -> None:
        self._node = node
        self._handler = handler

    def on_ready(self, link: Link) -> None:
        if self._node.alive:
            with self._node.here():
                self._handler.on_ready(link)

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        node = self._node
        if not node.alive:
            return
        if type(message) is Invalidate:
            node.world.witness.invalidated(node, message)
        token = _at_work.set(node)
        try:
            self._handler.on_message(link, message, frames)
        finally:
            _at_work.reset(token)

    def on_credit(self, link: Link) -> None:
        if self._node.alive:
            with self._node.here():
                self._handler.on_credit(link)

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        node = self._node
        if node.alive:
            node.world.note(f"{node.name}: link to {lost.peer.name} lost: {lost.reason}")
            with node.here():
                self._handler.on_lost(link, lost)


# -- gateway ------------------------------------------------------------------------------------------


class GatewayNode(Node):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, "gateway")
        self.sockets: list[Socket] = []
        self.service = GatewayService(
            GatewaySettings(host="127.0.0.1", port=0, uncovered_bytes=world.uncovered_bytes),
            self.stores,
            self._endpoint,
            name=name,
            incarnation=self.incarnation,
            clock=world.loop.time,
        )
        self._life: AbstractAsyncContextManager[None] | None = None

    async def start(self) -> bool:
        """False: the store does not answer; a supervisor tries again."""
        self._life = self.service.running()
        try:
            await self._life.__aenter__()
        except StoreUnavailable:
            self.alive = False
            return False
        return True

    async def stop(self) -> None:
        assert self._life is not None
        await self._life.__aexit__(None, None, None)

    @property
    def ready(self) -> bool:
        return self.alive and not self.service.unready()

    @property
    def purged(self) -> int:
        return self.service.pumps.purged

    def accept(self, socket: Socket) -> None:
        """A client has connected."""
        self.sockets.append(socket)
        self.spawn(self._serve(socket))

    async def _serve(self, socket: Socket) -> None:
        await self.service.app(socket.scope, socket.receive, socket.send)
        self.sockets.remove(socket)
        socket.served()

    def kill(self) -> None:
        """As kill -9 does it."""
        self.alive = False
        for socket in self.sockets:
            socket.server_died()
        run_now(self.endpoint.abort())
        for task in list(self.tasks):
            task.cancel()


# -- shard --------------------------------------------------------------------------------------------


class InlineExecutor(Executor):
    """Does a job at once, and tells of it after the time that a thread would have taken."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._world.loop.call_later(self._world.random.uniform(0.001, 0.04), self._run, future, fn, args, kwargs)
        return future

    def _run(self, future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # a job's refusal is its result
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing waits anywhere."""


class ShardNode(Node):
    def __init__(self, world: World, name: str, pipelines: Pipelines, limits: SessionLimits) -> None:
        super().__init__(world, name, "shard")
        self.shard = Shard(
            ShardOptions(id=name, max_sessions=16, limits=limits, sweep_s=world.sweep_s),
            pipelines=pipelines,
            store=self.stores,
            make_endpoint=lambda me, handler: self._endpoint(handler, f"memory://{name}"),
            open_machine=DuplexSessionMachine.open,
            offload_job=run_offload,
            executor=InlineExecutor(world),
            incarnation=self.incarnation,
        )
        self._asked_to_stop = asyncio.Event()
        self._work: asyncio.Task[Any] | None = None

    async def start(self) -> bool:
        with self.here():
            await self.shard.start()
        self._work = self.spawn(self.shard.run(self._asked()))
        return True

    async def _asked(self) -> None:
        await self._asked_to_stop.wait()

    def kill(self) -> None:
        """As kill -9 does it."""
        self.alive, self.held = False, None
        run_now(self.endpoint.abort())
        for task in list(self.tasks):
            task.cancel()
        with self.here():
            for resident in self.shard.manager.residents:
                resident.runner.finish()

    async def stop(self) -> None:
        self._asked_to_stop.set()
        if self._work is not None:
            await self._work
        await self.shard.stop()


# -- stage worker -------------------------------------------------------------------------------------


class VirtualSteps(Steps):
    """A step is done at once; its result is there when the time that it slept has passed."""

    def __init__(self, world: World, node: Node, engine: StageEngine, on_done: Callable[[Done], None]) -> None:
        self._world = world
        self._node = node
        self._engine = engine
        self._on_done = on_done
        self.busy_since = None

    def run(self, work: Work) -> Done:
        return perform(self._engine, work)

    def start(self, work: Work) -> None:
        world = self._world
        self.busy_since = world.now
        before = world.machine.slept
        done = perform(self._engine, work)
        world.loop.call_later(max(0.00005, world.machine.slept - before), self._finished, done)

    def _finished(self, done: Done) -> None:
        self.busy_since = None
        if self._node.alive:
            with self._node.here():
                self._on_done(done)

    def stop(self, timeout_s: float) -> bool:
        return True


class WorkerNode(Node):
    """What `stages.process` wires, with steps in virtual time."""

    def __init__(self, world: World, name: str, group: str, pipelines: Sequence[PipelineSpec]) -> None:
        super().__init__(world, name, "worker")
        self.worker = StageWorker(world.loop)
        self._endpoint(self.worker, f"memory://{name}")
        self.worker.host(
            HostedStage(
                pipeline.name,
                index,
                pipeline.stages[index],
                build(pipeline, index),
                world.loop,
                self.worker,
                lambda stage, engine, loop, on_done: VirtualSteps(world, self, engine, on_done),
            )
            for pipeline, index in stages_of(pipelines, group)
        )
        self._registration = WorkerRegistration(
            self.stores.registry,
            lambda: describe(self.worker, group, name, self.incarnation, self.endpoint.address),
        )
        self._beats: asyncio.Task[Any] | None = None

    async def start(self) -> bool:
        await self.endpoint.start()
        await self._registration.join()
        with self.here():
            self.worker.start()
        self._beats = self.spawn(self._registration.run())
        return True

    async def stop(self) -> None:
        self.worker.accepting = False
        self.worker.stop()
        if self._beats is not None:
            self._beats.cancel()
        await self._registration.leave()
        await self.endpoint.close()
