"""A whole shard in one loop: the real core and a real plugin, the in-memory bus and store, workers that relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import msgspec
import pytest

from duologue.bus import messages as bus
from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.memory import MemoryEndpoint, MemoryHub
from duologue.fence import CommandNo, DeliveryId, Owner
from duologue.model.catalog import find_pipeline
from duologue.model.outputs import ModelOutput, encode_output
from duologue.model.records import ShardRecord, StageRecord, WorkerRecord, encode_record
from duologue.protocol.duplex import AppendAudio, DuplexCommand, encode_command
from duologue.session.core.ears import run_offload
from duologue.session.core.engine_session import STATE_VERSION
from duologue.session.core.machine import DuplexSessionMachine
from duologue.session.membership import Replaced
from duologue.session.pipelines import load_served
from duologue.session.shard import Shard, ShardOptions
from duologue.store.memory import MemoryStore
from duologue.store.memory_budget import MemoryBudget
from duologue.store.ports import Head, Registration

pytestmark = pytest.mark.unit

PIPELINE = find_pipeline("loopback")
_M = TypeVar("_M")


class Worker(LinkHandler):
    """Opens what it is asked to; hands each unit on, and after the last stage decides to listen."""

    def on_ready(self, link: Link) -> None:
        pass

    def on_message(self, link: Link, message: bus.AnyMessage, frames: Sequence[bytes]) -> None:
        match message:
            case bus.OpenStages():
                link.send(bus.StagesOpened(message.session_id, message.fence, message.stages))
            case bus.Append():
                last = message.stage == len(PIPELINE.stages) - 1
                link.send(
                    bus.Output(
                        message.session_id,
                        message.fence,
                        message.stage,
                        -1 if last else message.stage + 1,
                        message.unit,
                        message.turn_id,
                    ),
                    [encode_output(ModelOutput(listen=True))] if last else frames,
                )
            case bus.Abort():
                link.send(bus.Aborted(message.session_id, message.fence, (), ()))

    def on_credit(self, link: Link) -> None:
        pass

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        pass


class Gateway(LinkHandler):
    """Keeps what it hears; acknowledges deliveries at once, as if they were on the socket."""

    def __init__(self, hub: MemoryHub, name: str) -> None:
        self.endpoint = hub.endpoint(Peer(name, "gateway", f"{name}-life"), self)
        self.heard: list[tuple[bus.AnyMessage, list[bytes]]] = []
        self.moved = asyncio.Event()
        self.link: Link | None = None
        self.n = 0
        self.generation = 1

    def on_ready(self, link: Link) -> None:
        self.link = link
        self.moved.set()

    def on_message(self, link: Link, message: bus.AnyMessage, frames: Sequence[bytes]) -> None:
        self.heard.append((message, list(frames)))
        if isinstance(message, bus.Deliveries):
            through = DeliveryId(message.owner.number, message.events[-1].n)
            link.send(bus.Delivered(message.session_id, message.owner, 1, through, through.n))
        self.moved.set()

    def on_credit(self, link: Link) -> None:
        pass

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        self.link = None
        self.moved.set()

    def send(self, message: bus.AnyMessage, frames: Sequence[bytes] = ()) -> None:
        assert self.link is not None
        assert self.link.send(message, frames)

    def say(self, command: DuplexCommand) -> None:
        bare, frames = command.detach()
        self.n += 1
        self.send(bus.ClientInput("s", CommandNo(self.generation, self.n), encode_command(bare)), frames)

    @property
    def events(self) -> list[tuple[int, dict[str, Any]]]:
        """(n, event), in order."""
        return [
            (delivery.n, msgspec.json.decode(body))
            for message, frames in self.heard
            if isinstance(message, bus.Deliveries)
            for delivery, body in zip(message.events, frames, strict=True)
        ]

    async def event(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The `count`th event of this type, when it is there."""
        while len(found := [event for _, event in self.events if event["type"] == kind]) < count:
            await self.wait()
        return found[count - 1]

    async def message(self, kind: type[_M]) -> _M:
        while not (found := [message for message, _ in self.heard if isinstance(message, kind)]):
            await self.wait()
        return found[-1]

    async def wait(self) -> None:
        self.moved.clear()
        await self.moved.wait()


class Fleet:
    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.store = MemoryStore()
        self.shard = self.make_shard()
        self.endpoints: list[MemoryEndpoint] = []

    def make_shard(self, *, standby: bool = False) -> Shard:
        return Shard(
            ShardOptions(id="shard-1", max_sessions=4, standby=standby),
            pipelines=load_served([PIPELINE]),
            store=self.store,
            make_endpoint=lambda me, handler: self.hub.endpoint(me, handler, "memory://shard-1"),
            open_machine=DuplexSessionMachine.open,
            offload_job=run_offload,
        )

    async def start(self) -> None:
        for group in PIPELINE.workers:
            endpoint = self.hub.endpoint(Peer(group, "worker", f"{group}-life"), Worker(), f"memory://{group}")
            await endpoint.start()
            self.endpoints.append(endpoint)
            stages = tuple(StageRecord(PIPELINE.name, stage, 0, 8) for stage in PIPELINE.stages_of(group))
            extra = encode_record(WorkerRecord(group, stages))
            await self.store.registry.beat(
                Registration("worker", group, f"{group}-life", endpoint.address, extra=extra)
            )
        await self.shard.start()
        for _ in range(1000):  # turns of the loop, until the links are up
            if self.shard.workers.ready(PIPELINE):
                return
            await asyncio.sleep(0)
        raise AssertionError("no link to the workers")

    async def gateway(self, name: str = "g1") -> Gateway:
        gateway = Gateway(self.hub, name)
        await gateway.endpoint.start()
        self.endpoints.append(gateway.endpoint)
        gateway.endpoint.dial("shard-1", "memory://shard-1")
        while gateway.link is None:
            await gateway.wait()
        return gateway

    async def open(self, **session: Any) -> Gateway:
        """A session that hears units by itself."""
        gateway = await self.gateway()
        body = msgspec.json.encode({"model": "loopback", "extra_body": {"auto_response": True}, **session})
        gateway.send(bus.OpenSession("s", "duplex", "key", b"digest", "g1-life"), [body])
        return gateway

    async def close(self) -> None:
        for endpoint in self.endpoints:
            await endpoint.close()


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    await made.start()
    yield made
    await made.shard.stop()
    await made.close()


def unit() -> AppendAudio:
    return AppendAudio(audio=bytes(2 * 16 * 80))


async def test_a_unit_goes_through_all_stages_and_comes_back_as_an_event(fleet: Fleet) -> None:
    gateway = await fleet.open()
    opened = await gateway.message(bus.SessionOpened)
    assert opened.owner == Owner(1, fleet.shard.incarnation)
    updated = await gateway.event("session.updated")
    assert updated["session"]["id"] == "s"
    for _ in range(3):
        gateway.say(unit())
    await gateway.event("response.listen", 3)
    numbers = [n for n, _ in gateway.events]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_the_registration_says_what_is_served(fleet: Fleet) -> None:
    await fleet.shard.membership.beat()
    roster = await fleet.store.registry.members("shard")
    [member] = roster.members
    record = msgspec.msgpack.decode(member.extra, type=ShardRecord)
    assert (member.endpoint, member.capacity, member.pipelines) == ("memory://shard-1", 4, ("loopback",))
    assert [(p.name, p.ready, p.max_sessions) for p in record.pipelines] == [("loopback", True, 256)]
    assert (record.accepting, record.sessions) == (True, 0)
    assert (record.reads_state, record.writes_state) == (STATE_VERSION, STATE_VERSION)
    assert record.operator_token == fleet.shard.operator.token != ""
    assert fleet.shard.not_ready_because() == "" and not record.standby


def test_a_shard_on_standby_says_so_and_takes_sessions_all_the_same() -> None:
    described = Fleet().make_shard(standby=True)._describe()
    record = msgspec.msgpack.decode(described.extra, type=ShardRecord)
    assert (record.standby, record.accepting, described.capacity) == (True, True, 4)


async def test_a_session_that_is_resumed_elsewhere_loses_nothing(fleet: Fleet) -> None:
    first = await fleet.open()
    opened = await first.message(bus.SessionOpened)
    await fleet.store.journal.claim("s", owner=opened.owner, generation=1)
    first.say(unit())
    await first.event("response.listen")
    first.send(bus.Detach("s", 1))
    second = await fleet.gateway("g2")
    head = await fleet.store.journal.claim("s", owner=opened.owner, generation=2)
    assert isinstance(head, Head)
    second.generation = 2
    second.send(bus.Attach("s", 2, head.egress, "g2-life"))
    attached = await second.message(bus.Attached)
    assert (attached.generation, attached.applied, attached.input_audio_end_ms) == (2, CommandNo(1, 1), 80)
    second.say(unit())
    await second.event("response.listen")
    assert [n for n, _ in second.events] == [3]


async def test_a_bad_configuration_is_refused_with_its_field(fleet: Fleet) -> None:
    gateway = await fleet.open(turn_detection={"type": "telepathy"})
    refused = await gateway.message(bus.SessionRefused)
    assert (refused.code, refused.close_code) == ("invalid_session_config", 1008)
    [(_, [error])] = [(m, frames) for m, frames in gateway.heard if m is refused]
    assert msgspec.json.decode(error)["error"]["param"].startswith("session.turn_detection")
    assert len(fleet.shard.admission) == 0


async def test_the_end_of_the_shard_is_told_to_its_clients_and_leaves_nothing(fleet: Fleet) -> None:
    gateway = await fleet.open()
    await gateway.event("session.updated")
    await fleet.shard.stop()
    closed = await gateway.event("session.closed")
    assert closed["reason"] == "shutdown"
    deliveries = await gateway.message(bus.Deliveries)
    assert deliveries.events[-1].close_code == 1012
    assert await fleet.store.sessions.look_up("s") is None
    assert (await fleet.store.registry.members("shard")).members == ()
    assert (len(fleet.shard.manager), len(fleet.shard.admission), len(fleet.shard.background)) == (0, 0, 0)


async def test_a_shard_whose_id_is_taken_over_ends(fleet: Fleet) -> None:
    await fleet.store.registry.beat(Registration("shard", "shard-1", "another"), join=True)
    with pytest.raises(Replaced):
        await fleet.shard.membership.beat()


async def test_a_shard_looks_how_full_the_store_is_for_the_journals_that_it_writes_itself(fleet: Fleet) -> None:
    looked: asyncio.Queue[int] = asyncio.Queue()

    async def look(journals: int) -> None:
        looked.put_nowait(journals)

    fleet.store.memory = MemoryBudget(8 * 1024 * 1024)
    fleet.store.look_at_memory = look  # type: ignore[method-assign]
    gateway = await fleet.open()
    await gateway.message(bus.SessionOpened)
    await fleet.shard.membership.beat()
    stop = asyncio.Event()

    async def stopped() -> None:
        await stop.wait()

    running = asyncio.create_task(fleet.shard.run(stopped()))
    assert await asyncio.wait_for(looked.get(), 5.0) == 1
    stop.set()
    await running


async def test_a_shard_on_a_store_without_a_budget_runs_on(fleet: Fleet) -> None:
    stop = asyncio.Event()

    async def stopped() -> None:
        await stop.wait()

    running = asyncio.create_task(fleet.shard.run(stopped()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done()
    stop.set()
    await running
