"""The real egress, pump and scripts in a world of faults, from one seed.

One session. The shard is a stand-in that makes a script of responses and keeps what is not acknowledged; what
is tried here is everything between it and the client: numbers, batches of unknown outcome, purge, claims by
one gateway after the other, adoption, the store away. The checks read the client's log and nothing else.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from duologue.bus.messages import Delivered, Delivery
from duologue.delivery.breaker import StoreBreaker
from duologue.delivery.egress import Egress, Frame
from duologue.delivery.pump import Pump, Pumps, Sink
from duologue.fence import DeliveryId, Owner
from duologue.store.memory import MemoryAppender, MemoryStore, run_now
from duologue.store.ports import (
    AppendOutcome,
    Entry,
    Head,
    JournalAppender,
    OnAppended,
    Owned,
    SessionRecord,
    StoreUnavailable,
    Unknown,
)

SID = "s"
FAULTS = ("lost", "late", "kill", "takeover", "adopt", "full", "stall", "down")


class Bad(Exception):
    """The client saw what it must not see."""


class World:
    END = 6.0

    def __init__(self, seed: int, faults: Collection[str], egress: type[Egress] = Egress) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.egress_class = egress
        self.now = 0.0
        self.count: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self.store = MemoryStore(lambda: 1000.0 + self.now, defer=lambda call: self.at(0.001, call))
        self.line = Line(self)
        self.gateways: list[Gateway] = []
        self.got: list[tuple[int, dict[str, Any]]] = []
        self.away_until = -1.0
        record = SessionRecord("p", "duplex", b"t", "g")
        owned = run_now(self.store.sessions.own(SID, incarnation="shard-0", create=record))
        assert isinstance(owned, Owned)
        self.shard = Shard(self, owned.owner)
        self.shard.turn(0)
        self.connect()

    @property
    def last(self) -> int:
        """The client's cursor."""
        return self.got[-1][0] if self.got else 0

    @property
    def gateway(self) -> Gateway:
        return self.gateways[-1]

    def at(self, delay: float, function: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), function, args))

    def run(self) -> None:
        strikes: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "takeover": self.connect,
            "adopt": self._adopt,
            "full": self._full,
            "stall": self._stall,
            "down": self._down,
        }
        chosen = [name for name in strikes if name in self.faults]
        self.random.shuffle(chosen)
        for i, name in enumerate(chosen * 2):  # single faults, one after the other
            self.at(0.4 + i * 4.2 / max(1, len(chosen) * 2), self._strike, name, strikes[name])
        self.at(0.05, self._tick)
        while self._events and self.now < self.END + 4:
            self.now, _, function, args = heapq.heappop(self._events)
            function(*args)
        self.check()

    def _strike(self, name: str, strike: Callable[[], None]) -> None:
        if self.now < self.away_until + 0.25:  # the store's absence is one fault, and it is not over
            return
        self.count[name] += 1
        strike()

    def _tick(self) -> None:
        self.at(0.05, self._tick)
        for gateway in self.gateways:
            if gateway.alive:
                gateway.pumps.tick()

    # -- faults ----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """The client comes (again), at a gateway that has not seen it."""
        self.gateways.append(Gateway(self, len(self.gateways) + 1))
        self.at(0.005, self.gateway.attach)

    def _kill(self) -> None:
        self.gateway.alive = False
        self.at(0.05, self.connect)

    def _adopt(self) -> None:
        heir = self.shard.heir()
        self.at(0.3, self.shard.die)  # it does not know yet that it was replaced
        self.shard = heir
        self.at(self.random.uniform(0.002, 0.03), self.gateway.owner_changed, heir)

    def _full(self) -> None:
        """The client stops reading for a while."""
        gateway = self.gateway
        gateway.has_room = False
        self.at(self.random.uniform(0.2, 0.6), gateway.drained)

    def _stall(self) -> None:
        """The store does not answer; what was sent to it is carried out when it is back."""
        self.away_until = self.line.stalled_until = self.now + self.random.uniform(0.1, 0.9)

    def _down(self) -> None:
        """No connection; what was out is lost or carried out, nobody knows."""
        self.away_until = self.line.down_until = self.now + self.random.uniform(0.1, 0.9)
        self.line.cut()

    # -- checks ----------------------------------------------------------------------------------------

    def receive(self, gateway: Gateway, seq: int, body: bytes) -> None:
        if gateway is self.gateway and seq > self.last:
            event = json.loads(body)
            if event.pop("server_event_seq") != seq:
                raise Bad("a frame says another number than the one it was given")
            self.got.append((seq, event))

    def check(self) -> None:
        opened = ended = unit = 0
        for due, (seq, event) in enumerate(self.got, 1):
            if seq != due:
                raise Bad(f"seq {seq} where {due} was due")
            response = event["response"]
            if event["type"] == "open":
                if response != opened + 1 or ended != opened:
                    raise Bad(f"response {response} opened after {opened}, ended {ended}")
                opened, unit = response, 0
            elif event["type"] == "end":
                if response != opened or ended == opened:
                    raise Bad(f"response {response} ended, open {opened}, ended {ended}")
                ended = response
            else:
                if response != opened or ended == opened:
                    raise Bad(f"audio of {response} while {opened} is open, {ended} ended")
                if event["unit"] != unit:
                    raise Bad(f"unit {event['unit']} where {unit} was due")
                unit += 1
        if ended < self.shard.response - 1:
            raise Bad(f"the end of response {self.shard.response - 1} never came")


class Line(JournalAppender):
    """The way to the store: it takes its time, loses replies, carries out late."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._inner = MemoryAppender(world.store.server, defer=lambda call: call())
        self.stalled_until = self.down_until = -1.0
        self._out: dict[int, OnAppended] = {}
        self._ids = itertools.count()

    @property
    def connected(self) -> bool:
        return self._world.now >= self.down_until

    def submit(
        self,
        session_id: str,
        owner: Owner,
        egress: int,
        first_seq: int,
        batch: Sequence[Entry],
        on_outcome: OnAppended,
    ) -> bool:
        world, r = self._world, self._world.random
        if not self.connected:
            return False
        id = next(self._ids)
        self._out[id] = on_outcome
        delay = r.uniform(0.001, 0.004) + max(0.0, self.stalled_until - world.now)
        execute = partial(self._inner.submit, session_id, owner, egress, first_seq, list(batch))
        chance = r.random()
        if "late" in world.faults and chance < 0.03:
            world.count["late execution"] += 1
            world.at(delay, self._answer, id, Unknown())
            world.at(delay + r.uniform(0.05, 0.4), execute, lambda outcome: None)
        elif "lost" in world.faults and chance < 0.08:
            world.count["lost reply"] += 1
            world.at(delay, execute, lambda outcome: world.at(0.002, self._answer, id, Unknown()))
        else:
            world.at(delay, execute, lambda outcome: world.at(0.002, self._answer, id, outcome))
        return True

    def _answer(self, id: int, outcome: AppendOutcome) -> None:
        on_outcome = self._out.pop(id, None)
        if on_outcome is not None:
            on_outcome(outcome)

    def cut(self) -> None:
        for id in list(self._out):
            self._answer(id, Unknown())


class Gateway(Sink):
    """One attachment on one gateway process."""

    def __init__(self, world: World, generation: int) -> None:
        self.world, self.generation = world, generation
        self.alive = self.has_room = True
        self.latency = world.random.uniform(0.001, 0.5)
        """What is on its way to the client when the socket goes is lost."""
        self.pump: Pump | None = None
        self.pumps = Pumps()

    def attach(self) -> None:
        """Claim, replay, tell the shard."""
        world, shard = self.world, self.world.shard
        if self.world.gateway is not self:
            return
        head = run_now(
            world.store.journal.claim(SID, owner=shard.owner, egress=shard.egress + 1, generation=self.generation)
        )
        if not isinstance(head, Head):
            raise Bad(f"the claim of the newest attachment was refused: {head.reason}")
        egress = world.egress_class(SID, shard.owner, head, StoreBreaker(), through=shard.reported)
        self.pump = Pump(egress, world.line, self, self.pumps, lambda: world.now)
        for entry in run_now(world.store.journal.read(SID, world.last, limit=10_000)).entries:
            world.at(self.latency, world.receive, self, entry.seq, _number(entry.body, entry.seq))
        world.count["resume"] += 1
        world.at(world.random.uniform(0.002, 0.1), lambda: world.shard.attach(self))

    def owner_changed(self, shard: Shard) -> None:
        if self.alive and self.pump is not None:
            self.pump.owner_changed(shard.owner)
            self.world.at(0.002, shard.attach, self)

    def deliver(self, owner: Owner, event: Delivery, body: bytes) -> None:
        if self.alive and self.pump is not None:
            self.pump.put(owner, [event], [body])

    def invalidate(self, owner: Owner, response: int) -> None:
        if self.alive and self.pump is not None:
            if self.pump.egress._flying:
                self.world.count["cancel with a batch out"] += 1
            self.pump.invalidate(owner, str(response), 0)

    def drained(self) -> None:
        self.has_room = True
        if self.alive and self.pump is not None:
            self.pump.drained()

    def room(self) -> bool:
        return self.has_room

    def write(self, frames: Sequence[Frame]) -> None:
        if self.alive:
            assert self.pump is not None
            self.world.count["frames"] += len(frames)
            self.world.count["sent without the journal"] += self.pump.egress.kept > 0
            for frame in frames:
                self.world.at(self.latency, self.world.receive, self, frame.seq, frame.body)

    def delivered(self, ack: Delivered) -> None:
        if self.alive:
            self.world.at(0.002, self.world.shard.acked, ack)

    def stopped(self, why: str) -> None:
        self.world.count[f"stopped: {why}"] += 1
        if why != "replaced" or self.world.gateway is self and self.generation != self.world.shard.generation:
            raise Bad(f"the egress of the attached gateway stopped: {why}")

    def owner_replaced(self, owner: Owner) -> None:
        self.world.count["owner refused"] += 1


class Shard:
    """Makes responses of audio, cancels them, keeps what is not acknowledged. An heir takes its state."""

    def __init__(self, world: World, owner: Owner) -> None:
        self.world, self.owner = world, owner
        self.alive = True
        self.n = self.unit = self.response = self.generation = self.egress = 0
        self.reported = (0, DeliveryId())
        self.buffer: list[tuple[DeliveryId, Delivery, bytes]] = []
        self.gateway: Gateway | None = None
        world.at(0.03, self.media)

    def heir(self) -> Shard:
        """Adoption: a higher owner, fenced in the journal too; the outbox minus what is journaled."""
        journal = self.world.store.journal
        owned = run_now(self.world.store.sessions.own(SID, incarnation=f"shard-{self.owner.number}"))
        assert isinstance(owned, Owned)
        head = run_now(journal.fence(SID, owned.owner))
        assert isinstance(head, Head)
        heir = Shard(self.world, owned.owner)
        heir.reported = (max(self.reported[0], head.last_seq), max(self.reported[1], head.last_delivery))
        heir.generation, heir.egress, heir.response = self.generation, head.egress, self.response
        heir.buffer = [
            (id, _of(event, id.owner), body)
            for id, event, body in self.buffer
            if id > heir.reported[1] and not event.media_of
        ]
        heir.turn(heir.response)
        return heir

    def die(self) -> None:
        self.alive = False

    def attach(self, gateway: Gateway) -> None:
        assert gateway.pump is not None
        if not self.alive or gateway.generation < self.generation:
            return
        self.generation, self.gateway = gateway.generation, gateway
        self.egress = max(self.egress, gateway.pump.egress.number)
        for _, event, body in self.buffer:
            self.world.at(0.002, gateway.deliver, self.owner, event, body)

    def acked(self, ack: Delivered) -> None:
        if self.alive:
            self.buffer = [event for event in self.buffer if event[0] > ack.through]
            self.reported = (max(self.reported[0], ack.seq), max(self.reported[1], ack.through))

    def _out(self, type: str, media_of: str = "", **body: int) -> None:
        self.n += 1
        event = Delivery(self.n, media_of)
        rendered = json.dumps({"type": type, "response": self.response, **body}).encode()
        self.buffer.append((DeliveryId(self.owner.number, self.n), event, rendered))
        if self.gateway is not None:
            self.world.at(0.002, self.gateway.deliver, self.owner, event, rendered)

    def media(self) -> None:
        if self.alive and self.world.now < self.world.END:
            self.world.at(0.02, self.media)
            self._out("audio", str(self.response), unit=self.unit)
            self.unit += 1

    def turn(self, response: int) -> None:
        """Cancel the open response, open the next one."""
        if not self.alive or response != self.response or self.world.now > self.world.END:
            return
        if response:
            self.buffer = [event for event in self.buffer if event[1].media_of != str(response)]
            if self.gateway is not None:
                self.world.at(0.002, self.gateway.invalidate, self.owner, response)
            self._out("end")
        self.response, self.unit = response + 1, 0
        self._out("open")
        self.world.at(self.world.random.uniform(0.1, 0.4), self.turn, self.response)


def _of(event: Delivery, owner: int) -> Delivery:
    return Delivery(event.n, event.media_of, event.epoch, of=event.of or owner)


def _number(body: bytes, seq: int) -> bytes:
    """What a client gets, made another way than the egress makes it."""
    return json.dumps({**json.loads(body), "server_event_seq": seq}).encode()


def campaign(
    faults: Collection[str], seeds: range, egress: type[Egress] = Egress
) -> tuple[dict[int, str], Counter[str]]:
    """What was found, by seed, and how often each hard thing happened."""
    found: dict[int, str] = {}
    total: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed, faults, egress)
        try:
            world.run()
        except (Bad, StoreUnavailable) as bad:  # a script that fails is a finding too
            found[seed] = str(bad)
        total += world.count
    return found, total
