"""A whole system and its users in one thread, from one seed: two gateways, two shards, two stage workers, a store.

Everything but the sockets, the wires and the store's line is the product's own code. What goes wrong is drawn
from the seed (`faults`); what must hold is checked while it happens (`witness`, `record`) and at rest (here).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from simulation.client import Client
from simulation.commands import loud
from simulation.faults import Faults
from simulation.nodes import GatewayNode, Node, ShardNode, WorkerNode, make_task
from simulation.script import ACTS, TURN_ACTS, session_of
from simulation.store_line import Depot
from simulation.virtual_time import Machine, Stuck, VirtualLoop
from simulation.weather import BusWeather
from simulation.witness import Witness

from duologue.bus.memory import MemoryHub
from duologue.fence import Owner
from duologue.gateway.rehoming import PATIENCE_S
from duologue.model.catalog import find_pipeline
from duologue.model.pipeline import PipelineSpec
from duologue.session.core import history
from duologue.session.core.limits import SessionLimits
from duologue.session.core.machine import DuplexSessionMachine
from duologue.session.pipelines import Pipelines, load_served
from duologue.session.resident import Resident
from duologue.store.journals import ScriptedJournal
from duologue.store.memory import run_now
from duologue.store.ports import Head, Owned, Registration
from duologue.store.registrations import ScriptedRegistry
from duologue.store.sessions import ScriptedSessions

if TYPE_CHECKING:
    from simulation.record import Record

CLIENTS = (2, 2, 2, 3)
"""How many a world has: one of these."""
COMMANDS = 200
"""Client commands of a world, at least."""
END_S = 240.0
"""A world that is not over by then hangs."""
LIMITS = SessionLimits(max_output_events=120, max_output_bytes=200_000)
TOMB_S = 70.0
FAULT_ECHO_S = 6.0
"""So long after a fault a session's events may still wait for something."""
SETTLE_S = 12.0
"""Longer than a session's last acknowledgement may take, and than a worker keeps the place of a session whose end was
lost with the link (10 s)."""
LOOK_EVERY_S = 0.5


class Bad(Exception):
    """Something happened that must not."""


@functools.cache
def _pipelines() -> tuple[tuple[PipelineSpec, ...], Pipelines]:
    specs = (find_pipeline("loopback"),)
    return specs, load_served(specs)


class World:
    """`run` it once. Raises `Bad`."""

    sweep_s = 0.0
    """How often shards look for sessions of dead ones; 0: never."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(f"world {seed}")
        self.loop = VirtualLoop()
        self.loop.set_task_factory(make_task)  # type: ignore[arg-type]
        self.loop.set_exception_handler(self._loop_failed)
        self.machine = Machine(seed, self.loop)
        self.count: Counter[str] = Counter()
        self.history: deque[str] = deque(maxlen=5000)
        self.written = 0
        """A checksum of everything that gateways wrote."""
        self.window_bytes = self.random.choice((24_000, 60_000, 1_000_000))
        self.uncovered_bytes = self.random.choice((6_000, 4 << 20))
        self.clients_due = self.random.choice(CLIENTS)
        self.commands_each = -(-COMMANDS // self.clients_due)
        self.witness = Witness(self)
        self.depot = Depot(self)
        self.weather = BusWeather(self)
        self.hub = MemoryHub(self.weather)
        self.gateways: list[GatewayNode] = []
        self.shards: list[ShardNode] = []
        self.workers: list[WorkerNode] = []
        self.clients: list[Client] = []
        self.slow: set[int] = set()
        """Clients that stopped reading at some time."""
        self.open_lost_at = -LIMITS.disconnect_grace_s
        """When an attempt to open was last given up: nobody has the session that it may have opened, and its grace
        ends it."""
        self.faults_struck = 0
        self.last_fault = -FAULT_ECHO_S
        self.forgets = False
        """A gateway has died, or a link was broken: what was on its way is lost."""
        self.purged = 0
        """Events that gateways which are gone have purged."""
        self._lives: Counter[str] = Counter()
        self._gateways_ever: list[GatewayNode] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._inherited: dict[str, Owner] = {}
        self._failure: str | None = None
        self._main: asyncio.Task[None] | None = None

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def now(self) -> float:
        return self.loop.time()

    def fork(self, what: str) -> random.Random:
        """Chances of its own, so that one part of a world does not move another."""
        return random.Random(f"{what} {self.seed}")

    def incarnation(self, name: str) -> str:
        self._lives[name] += 1
        return f"{name}-{self._lives[name]}"

    def note(self, what: str) -> None:
        self.history.append(f"{self.now:9.4f} {what}")

    def fail(self, what: str) -> None:
        """Something must not have happened. The world ends; the first failure counts."""
        self.note(f"BAD: {what}")
        if self._failure is None:
            self._failure = what
            if self._main is not None:
                self._main.cancel()

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        self.fail(f"{context['message']}: {type(error).__name__}: {error}")

    # -- the run ---------------------------------------------------------------------------------------

    def run(self) -> None:
        handler = _Alarm(self)
        log = logging.getLogger("duologue")
        level, propagate = log.level, log.propagate
        log.addHandler(handler)
        log.setLevel(logging.WARNING)
        log.propagate = False
        try:
            with self.machine.in_force():
                self._main = self.loop.create_task(self._life())
                try:
                    self.loop.run_until_complete(self._main)
                except asyncio.CancelledError:
                    if self._failure is None:
                        self.fail("the world was cancelled")
                except Stuck as stuck:
                    self.fail(f"{stuck}; next: {[str(handle)[:120] for handle in self.loop._ready][:5]}")
                self._clear_away()
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate
            self.loop.close()
            self._let_go()
        if self._failure is not None:
            raise Bad(self._failure)

    def _let_go(self) -> None:
        """Have the memory of this world given back: Lua and FastAPI's caches would keep it."""
        self.depot.server.close()
        for gateway in self._gateways_ever:
            vars(gateway.service).clear()

    def _clear_away(self) -> None:
        """End what is left, which is nothing unless the world failed."""
        tasks = asyncio.all_tasks(self.loop)
        if tasks and self._failure is None:
            self.fail(f"tasks are left: {sorted(str(task.get_coro()) for task in tasks)[:3]}")
        for node in (*self.gateways, *self.shards, *self.workers):
            node.alive = False
        for task in tasks:
            task.cancel()
        try:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=5) if tasks else asyncio.sleep(0))
        except Stuck:
            return

    async def _life(self) -> None:
        try:
            async with asyncio.timeout(END_S):
                await self._start()
                self.clients = [Client(self, number) for number in range(self.clients_due)]
                self.faults = self.make_faults()
                self.faults.begin()
                async with asyncio.TaskGroup() as group:
                    for client in self.clients:
                        group.create_task(client.run())
                await self._end()
        except TimeoutError:
            self.fail("the world does not come to its end")

    # What worlds of another kind have otherwise.

    def pipelines(self) -> tuple[tuple[PipelineSpec, ...], Pipelines]:
        return _pipelines()

    def make_faults(self) -> Faults:
        return Faults(self)

    def session_of(self, client: Client) -> dict[str, Any]:
        """What this client opens with."""
        return session_of(client)

    def sound_of(self, event_id: str, ms: int) -> str:
        """The sound of one append, base64."""
        return loud(ms)

    def acts_of(self, client: Client) -> dict[str, int]:
        """What this client does, and how often of a hundred."""
        return TURN_ACTS if client.turn_based else ACTS

    def worker_places(self, specs: tuple[PipelineSpec, ...]) -> Sequence[str]:
        """What `make_worker` makes one of each."""
        return specs[0].workers

    def make_worker(self, group: str, specs: tuple[PipelineSpec, ...]) -> WorkerNode:
        return WorkerNode(self, f"worker-{group}", group, specs)

    async def _start(self) -> None:
        specs, pipelines = self.pipelines()
        self.workers = [self.make_worker(place, specs) for place in self.worker_places(specs)]
        self.shards = [ShardNode(self, f"shard-{n}", pipelines, LIMITS) for n in (1, 2)]
        for node in (*self.workers, *self.shards):
            await node.spawn(node.start())
        for name in ("gateway-1", "gateway-2"):
            await self.new_gateway(name)
        await self.until(lambda: all(gateway.ready for gateway in self.gateways))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Look, and look again every twentieth of a second."""
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)

    def restart_gateway(self, name: str) -> None:
        """As a supervisor does it."""
        if not self.failed and not self._stopping:
            self._starting.add(birth := self.loop.create_task(self.new_gateway(name)))
            birth.add_done_callback(self._starting.discard)

    async def new_gateway(self, name: str) -> None:
        self.gateways = [node for node in self.gateways if node.name != name or node.alive]
        gateway = GatewayNode(self, name)
        while not await gateway.spawn(gateway.start()):
            await asyncio.sleep(0.5)
            gateway = GatewayNode(self, name)
        self.gateways.append(gateway)
        self._gateways_ever.append(gateway)

    # -- for clients and faults ------------------------------------------------------------------------

    def choose_gateway(self, draw: random.Random, last: GatewayNode | None) -> GatewayNode | None:
        """One that is there, rather another one than the last."""
        alive = [gateway for gateway in self.gateways if gateway.ready]
        others = [gateway for gateway in alive if gateway is not last]
        if others and draw.random() < 0.8:
            return draw.choice(others)
        return draw.choice(alive) if alive else None

    def was_slow(self, client: Client) -> bool:
        """This client did not read for a while, or its events waited for something else."""
        return client.number in self.slow or self.now < self.last_fault + FAULT_ECHO_S

    def may_lose_socket(self, reason: str) -> bool:
        """A gateway may close an attached socket for this reason."""
        return True

    def gap_allowed(self, record: Record) -> bool:
        """What was sent without the store may be lost with its gateway, or on that one's way to the shard."""
        return self.forgets and self.witness.unconfirmed(record.session_id)

    def inherit(self, client: Client) -> None:
        """Take a session over, as an heir does it: own, then fence the journal."""
        record = client.record
        record.inherited = True
        heir = f"heir-{len(self._inherited)}"
        owned = run_now(ScriptedSessions(self.depot.server).own(record.session_id, incarnation=heir))
        assert isinstance(owned, Owned), owned
        head = run_now(ScriptedJournal(self.depot.server).fence(record.session_id, owned.owner))
        assert isinstance(head, Head), head
        alive = Registration("heir", heir, heir)  # whoever is registered is not inherited from in turn
        run_now(ScriptedRegistry(self.depot.server).beat(alive, expiry_s=2 * END_S, join=True))
        self._inherited[record.session_id] = owned.owner
        self.witness.of(record.session_id).owner_over = True

    def _release_inherited(self) -> None:
        """What was taken over is still there, untouched; then it ends too."""
        for session_id, owner in self._inherited.items():
            found = run_now(ScriptedSessions(self.depot.server).look_up(session_id))
            if found is None or found.owner != owner:
                self.fail(f"{session_id}: its old owner has taken it away from {owner}: {found}")
            run_now(ScriptedJournal(self.depot.server).release(session_id, owner))
            run_now(ScriptedSessions(self.depot.server).release(session_id, owner))

    # -- at rest ---------------------------------------------------------------------------------------

    def homes_of(self, session_id: str) -> list[Resident]:
        """Where this session lives."""
        residents = (resident for shard in self.shards for resident in shard.shard.manager.residents)
        return [resident for resident in residents if resident.session_id == session_id]

    def check_at_rest(self, client: Client) -> None:
        """This client's session has been given everything and has said everything."""
        record = client.record
        homes = self.homes_of(record.session_id)
        if len(homes) != 1:
            return record.fail(f"it lives in {len(homes)} shards")
        runner = homes[0].runner
        if runner.output.pending:
            record.fail(f"{runner.output.pending} events are not acknowledged at rest")
        if runner.machine.pending_input_bytes:
            record.fail(f"{runner.machine.pending_input_bytes} bytes of input are reserved at rest")
        if runner.waiting:
            record.fail(f"{runner.waiting} facts wait at rest")
        assert isinstance(runner.machine, DuplexSessionMachine)
        context = runner.machine._ctx
        reserved = (context.state.outbox.size_bytes, context.state.sound.in_window)
        if any(reserved):
            record.fail(f"bytes of output, places in the window that are reserved at rest: {reserved}")
        for item in history.conversation(context):
            if item.role == "assistant":
                record.check_history(item.id.removeprefix("item_"), item.text)
        return None

    def _left(self) -> list[str]:
        """What the processes still hold of any session."""
        found: list[str] = []
        for gateway in self.gateways:
            held = (len(gateway.service.attachments), len(gateway.sockets))
            if any(held):
                found.append(f"{gateway.name}: attachments, sockets left: {held}")
        for shard in self.shards:
            left = (len(shard.shard.manager), len(shard.shard.admission), len(shard.shard.hub))
            if any(left):
                found.append(f"{shard.name}: sessions, places, bindings left: {left}")
        for worker in self.workers:
            for stage in worker.worker.stages.values():
                if stage.slots.used:
                    found.append(f"{worker.name}: {stage.slots.used} slots of {stage.spec.name} are taken")
        return found

    async def _end(self) -> None:
        """Every session is closed: nothing of them may be left anywhere."""
        deadline = max(self.now, self.open_lost_at + LIMITS.disconnect_grace_s) + SETTLE_S
        if self._inherited:  # a gateway looks for the heir that the world has made up
            deadline += PATIENCE_S
        await self.until(lambda: self.now >= deadline or not self._left())
        await asyncio.sleep(LOOK_EVERY_S)  # what comes late may take something again
        if self.faults_struck < 3:
            self.fail(f"only {self.faults_struck} faults struck")
        commands = sum(client.commands for client in self.clients)
        self.count["commands"] += commands
        if commands < COMMANDS:
            self.fail(f"only {commands} commands were sent")
        for left in self._left():
            self.fail(left)
        for node in (*self.gateways, *self.shards, *self.workers):
            self.count["credit exhausted"] += node.credit_exhausted
        self.count["invalidate purged something"] += self.purged + sum(gateway.purged for gateway in self.gateways)
        await self.until(lambda: not self._starting)  # whoever has just been started is stopped with the others
        self._stopping = True
        nodes: list[Node] = [*self.gateways, *self.shards, *self.workers]
        for node in nodes:
            await node.spawn(node.stop())
        await asyncio.sleep(0.5)
        self._release_inherited()
        server = self.depot.server
        for heir in self._inherited.values():
            run_now(ScriptedRegistry(server).remove("heir", heir.incarnation, heir.incarnation))
        left_keys = server.commands.keys(server.now_us() + int((TOMB_S + 60) * 1e6))
        if left_keys:
            self.fail(f"keys are left in the store: {left_keys}")


class _Alarm(logging.Handler):
    """An error in the log of the product is a failure of the world; a warning is part of its history."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text += f": {type(error).__name__}: {error}"
        if record.levelno >= logging.ERROR:
            self._world.fail(f"logged: {text}")
        else:
            self._world.note(f"log: {text}")
