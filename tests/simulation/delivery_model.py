"""The delivery rules (numbers, fences, journal, adoption) as an executable model: the specification that the
real egress, scripts and shard are held to.

One session. Gateways come and go, shard incarnations replace each other, a store loses replies, executes
late and forgets its newest writes. The world that drives them is `delivery_model_world`; its checks read
nothing but the client's log. A `mutant` switches one rule off; each must be caught.

Bodies are tuples: ("ack", k) answers command k, ("open", r) / ("media", r, i) / ("end", r) are a response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.delivery_model_world import World

Owner = tuple[int, int]
"""Number and incarnation."""
Id = tuple[int, int]
"""Delivery id: owner number, count."""
Body = tuple[Any, ...]
Event = tuple[Id, Body]

BATCH = 4

MUTANTS = {
    "same_egress": "a claim does not raise the egress number",
    "no_owner": "no script of the store compares owners",
    "reported": "a claim does not know what the shard saw acknowledged",
    "plain_ids": "delivery ids do not carry the owner number",
    "applied": "commands count as covered when applied, not when a checkpoint has them",
    "early": "structural events leave before their checkpoint",
    "checkpoint_number": "a late checkpoint replaces a newer one",
    "renumber": "a batch of unknown outcome is given new numbers",
    "purge_batch": "a purge takes from the outstanding batch too",
    "unjournaled": "an event goes to the socket before the journal has answered",
}


class Bad(Exception):
    """A rule is broken."""


class Store:
    """Fences, numbering, journal and checkpoint. `regress` is a failover that loses the newest writes."""

    def __init__(self, mutant: str) -> None:
        self.mutant = mutant
        self.owner: Owner = (0, 0)
        self.egress = 0
        self.seq = 0
        self.last: Id = (0, 0)
        self.journal: dict[int, Event] = {}
        self.saved: tuple[tuple[int, int], Any] = ((0, 0), None)
        self._past: list[tuple[Any, ...]] = []

    def _remember(self) -> None:
        now = (self.owner, self.egress, self.seq, self.last, dict(self.journal), self.saved)
        self._past = [*self._past, now][-30:]

    def regress(self, steps: int) -> None:
        if len(self._past) > steps:
            self.owner, self.egress, self.seq, self.last, journal, self.saved = self._past[-1 - steps]
            self.journal = dict(journal)
            del self._past[-steps:]

    def fenced(self, owner: Owner) -> bool:
        """Lower: refused. Equal number of another incarnation: refused. Higher: the store heals forward."""
        if self.mutant == "no_owner":
            return False
        return owner != self.owner and owner[0] <= self.owner[0]

    def append(self, owner: Owner, egress: int, first: int, batch: list[Event]) -> tuple[Any, ...]:
        if self.fenced(owner) or egress < self.egress:
            return ("fenced", self.owner, self.egress, self.seq, self.last)
        self.owner, self.egress = owner, egress
        for seq, (id, body) in enumerate(batch, first):
            if seq <= self.seq:
                if seq in self.journal and self.journal[seq][0] != id:
                    raise Bad(f"seq {seq} given to {self.journal[seq][0]} and {id}")
                continue
            self.seq, self.last, self.journal[seq] = seq, id, (id, body)
        self._remember()
        return ("ok", self.seq, self.last)

    def claim(self, egress: int, owner: Owner) -> tuple[Any, ...]:
        """A new egress: it learns where numbering stands."""
        if self.fenced(owner):
            return ("fenced",)
        self.egress = self.egress if self.mutant == "same_egress" else max(egress, self.egress + 1)
        self._remember()
        return ("ok", self.egress, self.seq, self.last)

    def checkpoint(self, owner: Owner, number: int, state: Any) -> tuple[Any, ...]:
        if self.fenced(owner):
            return ("fenced",)
        if self.mutant != "checkpoint_number" and (owner[0], number) <= self.saved[0]:
            return ("ok",)
        self.owner, self.saved = owner, ((owner[0], number), state)
        self._remember()
        return ("ok",)

    def own(self, above: int, incarnation: int) -> Owner:
        self.owner = (max(self.owner[0], above) + 1, incarnation)
        self._remember()
        return self.owner


class Egress:
    """Numbers, journals, then hands on. In the attached gateway, or in the shard of a detached session."""

    def __init__(
        self,
        world: World,
        emit: Callable[[int, Body], object],
        acked: Callable[[Id, int], object],
        runs: Callable[[], bool],
    ) -> None:
        self.world, self.emit, self.acked, self.runs = world, emit, acked, runs
        self.queue: list[tuple[Owner, Id, Body]] = []
        self.batch: list[tuple[Owner, Id, Body]] | None = None
        self.number = 0
        self.seq = 0
        self.last: Id = (0, 0)
        self.owner: Owner = (0, 0)
        self.off = False
        self.purged: list[Id] = []

    def put(self, owner: Owner, id: Id, body: Body) -> None:
        if self.off or owner[0] < self.owner[0]:
            return
        if owner > self.owner:
            self.replace_owner(owner)
        self.queue.append((owner, id, body))
        self.pump()

    def invalidate(self, owner: Owner, response: int) -> None:
        """Removes what has no number yet, and nothing else."""
        if owner != self.owner:
            return
        self.queue = [event for event in self.queue if event[2][:2] != ("media", response)]
        if self.world.mutant == "purge_batch" and self.batch:
            self.batch = [event for event in self.batch if event[2][:2] != ("media", response)] or None

    def replace_owner(self, owner: Owner) -> None:
        self.owner = owner
        self.queue = [event for event in self.queue if event[0] == owner]

    def pump(self) -> None:
        while self.batch is None and self.queue and not self.off and self.runs():
            if self.queue[0][1] <= self.last:  # numbered before, whoever sent it again
                self.acked(self.queue.pop(0)[1], self.seq)
                continue
            owner = self.queue[0][0]
            batch: list[tuple[Owner, Id, Body]] = []
            while self.queue and len(batch) < BATCH and self.queue[0][0] == owner:
                batch.append(self.queue.pop(0))
            self.batch = batch
            if self.world.mutant == "unjournaled":
                for i, (_, _, body) in enumerate(batch, 1):
                    self.emit(self.seq + i, body)
            self.submit()

    def submit(self) -> None:
        assert self.batch
        events = [(id, body) for _, id, body in self.batch]
        self.world.call(self.world.store.append, self.answered, self.batch[0][0], self.number, self.seq + 1, events)

    def answered(self, answer: tuple[Any, ...]) -> None:
        if not self.runs() or self.batch is None:
            return
        if answer[0] == "timeout":  # unknown: the same batch, the same numbers
            if self.world.mutant == "renumber":
                self.seq += len(self.batch)
            self.submit()
            return
        batch, self.batch = self.batch, None
        last = batch[-1][1]
        if answer[0] == "fenced":
            _, _, egress, _, last = answer
            if egress != self.number:
                self.off, self.queue = True, []
                return
        for _, id, body in batch:
            if id <= last:
                self.seq += 1
                self.last = id
                if self.world.mutant != "unjournaled":
                    self.emit(self.seq, body)
                self.acked(id, self.seq)
        self.pump()


class Client:
    """Speaks, drops what it has already, reconnects. `got` is the only thing that the checks look at."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.got: list[tuple[int, Body]] = []
        self.attached: int | None = None
        self.wanted: int | None = None
        self.sent = 0
        self.last = 0
        world.at(0.05, self.speak)

    def connect(self) -> None:
        gateway = self.world.new_gateway()
        self.wanted = gateway.id
        self.world.at(0.005, gateway.resume)

    def dropped(self, gateway: int, wait: float) -> None:
        if gateway == self.wanted:
            self.attached = None
            self.world.at(wait, self.reconnect, gateway)

    def reconnect(self, gateway: int) -> None:
        if self.wanted == gateway:
            self.connect()

    def receive(self, gateway: int, seq: int, body: Body) -> None:
        if gateway == self.attached and seq > self.last:
            self.last = seq
            self.got.append((seq, body))

    def speak(self) -> None:
        world = self.world
        if world.now >= world.QUIET:
            return
        world.at(world.random.uniform(0.02, 0.06), self.speak)
        self.sent += 1
        gateway = world.gateways.get(self.attached or 0)
        if gateway:
            gateway.command(self.sent)


class Gateway:
    """One attachment: it claims the egress, replays, keeps commands until they are covered."""

    def __init__(self, world: World, id: int) -> None:
        self.world, self.id = world, id
        self.alive, self.paused, self.live, self.closed, self.ready = True, False, False, False, False
        self.kept: list[int] = []
        self.shard: Shard | None = None
        self.attachment = 0
        self.egress = Egress(
            world,
            lambda seq, body: world.at(0.001, world.client.receive, self.id, seq, body),
            self._acked,
            lambda: self.alive and not self.paused,
        )

    def _acked(self, id: Id, seq: int) -> None:
        if self.shard:
            self.world.at(0.002, self.shard.post, self.shard.acked, id, seq)

    def _claim(self, shard: Shard) -> tuple[int, Id] | None:
        """Where numbering stands, or None where the shard has been replaced."""
        answer = self.world.store.claim(shard.egress_number + 1, shard.owner)
        if answer[0] == "fenced":
            return None
        _, self.egress.number, seq, last = answer
        if self.world.mutant == "reported":
            return seq, max(last, shard.reported_id)
        return max(seq, shard.reported), max(last, shard.reported_id)

    def resume(self) -> None:
        world, shard = self.world, self.world.shard
        if world.client.wanted != self.id or not self.alive:
            return
        if not shard.alive or shard.paused:  # the session is moving: try again
            world.at(0.05, self.resume)
            return
        cursor = world.client.last
        head = self._claim(shard)
        if head is None:
            world.at(0.05, self.resume)
            return
        world.count["resume"] += 1
        self.attachment = world.next_attachment()
        self.egress.seq, self.egress.last = head
        self.egress.owner = shard.owner
        world.client.attached, self.live = self.id, True
        wanted = range(cursor + 1, self.egress.seq + 1)
        missing = [seq for seq in wanted if seq not in world.store.journal]
        if missing:
            if "regress" not in world.faults:
                raise Bad(f"journal gap at {missing[0]}")
            world.holes.append((cursor, self.egress.seq))
            world.client.last = max(cursor, self.egress.seq)
        else:
            self._replay(wanted)
        world.at(0.002, self.hello, shard)

    def _replay(self, wanted: range) -> None:
        for seq in wanted:
            if seq not in self.world.store.journal:
                raise Bad(f"journal gap at {seq}")
            self.world.at(0.003, self.world.client.receive, self.id, seq, self.world.store.journal[seq][1])

    def hello(self, shard: Shard) -> None:
        if self.alive:
            shard.post(shard.attach, self)

    def claim_again(self, shard: Shard) -> None:
        """The shard took the egress while this attachment was on its way; the attachment stands."""
        if not self.alive or self.world.client.attached != self.id or shard.owner[0] < self.egress.owner[0]:
            return
        head = self._claim(shard)
        if head is None:
            return
        egress, before = self.egress, self.egress.seq
        egress.off, egress.batch, egress.queue = False, None, []
        egress.seq, egress.last = head
        self._replay(range(before + 1, egress.seq + 1))
        self.hello(shard)

    def owner_changed(self, shard: Shard) -> None:
        if not self.alive or self.egress.off or shard.owner[0] <= self.egress.owner[0]:
            return
        self.ready = False
        self.egress.replace_owner(shard.owner)
        self.hello(shard)

    def synced(self, shard: Shard, covered: int) -> None:
        """The shard has attached this gateway; commands that no checkpoint has are sent again."""
        if not self.alive or self.egress.off or shard.owner[0] < self.egress.owner[0]:
            return
        if shard.owner != self.egress.owner:
            self.egress.replace_owner(shard.owner)
        if self.shard is None:  # `session.resumed` told the client where the server stands
            self.kept = list(range(covered + 1, self.world.client.sent + 1))
        self.shard, self.ready = shard, True
        self.covered(covered)
        for k in self.kept:
            self.world.at(0.002, shard.post, shard.command, k)
        self.egress.pump()

    def command(self, k: int) -> None:
        if self.closed or not self.alive or self.paused or self.shard is None:
            return
        self.kept.append(k)
        if self.ready:
            self.world.at(0.002, self.shard.post, self.shard.command, k)

    def covered(self, through: int) -> None:
        self.kept = [k for k in self.kept if k > through]

    def wake(self) -> None:
        self.paused = False
        if self.egress.batch:
            self.egress.submit()
        self.egress.pump()

    def invalidate(self, owner: Owner, response: int) -> None:
        if self.alive:
            self.egress.invalidate(owner, response)

    def deliver(self, owner: Owner, id: Id, body: Body) -> None:
        if self.alive:
            self.egress.put(owner, id, body)


class Shard:
    """One incarnation of the session: state, outbox, output commit. `state` is what a checkpoint holds."""

    def __init__(self, world: World, owner: Owner, state: tuple[Any, ...] | None) -> None:
        self.world, self.owner = world, owner
        self.alive, self.paused, self.saving = True, False, False
        self.inbox: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.gateway: Gateway | None = None
        self.attachment = 0
        self.held: list[Event] = []
        self.own_egress: Egress | None = None
        self.number = self.n = self.unit = 0
        done, outbox, reported, egress, reported_id, self.response = state or (0, [], 0, 0, (0, 0), 0)
        self.done: int = done
        self.covered: int = done
        store = world.store
        self.reported: int = max(reported, store.seq)
        self.reported_id: Id = max(reported_id, store.last)
        self.egress_number: int = max(egress, store.egress)
        self.buffer: list[Event] = [event for event in outbox if event[0] > self.reported_id]
        world.at(0.03, self.media)
        world.at(0.001, self.turn, self.response)

    def post(self, function: Callable[..., object], *args: Any) -> None:
        if not self.alive:
            return
        if self.paused:
            self.inbox.append((function, args))
        else:
            function(*args)

    def wake(self) -> None:
        self.paused = False
        inbox, self.inbox = self.inbox, []
        for function, args in inbox:
            if self.alive:
                function(*args)
        if self.alive:
            self.world.at(0.001, self.media)
            self.world.at(0.001, self.turn, self.response)
            if self.own_egress:
                if self.own_egress.batch:
                    self.own_egress.submit()
                self.own_egress.pump()

    def _next_id(self) -> Id:
        self.n += 1
        return (0 if self.world.mutant == "plain_ids" else self.owner[0], self.n)

    def attach(self, gateway: Gateway) -> None:
        if gateway.attachment < self.attachment:  # it was replaced meanwhile
            return
        self.attachment = gateway.attachment
        if gateway.egress.number < self.egress_number and gateway is not self.gateway:
            self.world.at(0.002, gateway.claim_again, self)
            return
        self.egress_number, self.gateway = gateway.egress.number, gateway
        if self.own_egress:
            self.own_egress.off, self.own_egress = True, None
        self.world.at(0.002, gateway.synced, self, self.covered)
        for id, body in self.buffer:
            self.world.at(0.002, gateway.deliver, self.owner, id, body)

    def detached(self, gateway: int) -> None:
        if self.gateway is not None and self.gateway.id == gateway:
            self.gateway = None
            self.claim()

    def nobody_came(self) -> None:
        if self.alive and not self.paused and self.gateway is None and self.own_egress is None:
            self.claim()

    def claim(self) -> None:
        """Become the egress of a session that nobody is attached to."""
        world = self.world
        world.count["detach"] += 1
        answer = world.store.claim(self.egress_number + 1, self.owner)
        if answer[0] == "fenced":
            self.alive = False
            return
        _, self.egress_number, seq, last = answer
        egress = self.own_egress = Egress(
            world,
            lambda seq, body: None,
            lambda id, seq: self.post(self.acked, id, seq),
            lambda: self.alive and not self.paused,
        )
        egress.number, egress.owner = self.egress_number, self.owner
        egress.seq, egress.last = max(seq, self.reported), max(last, self.reported_id)
        for id, body in list(self.buffer):
            egress.put(self.owner, id, body)

    def out(self, id: Id, body: Body) -> None:
        self.buffer.append((id, body))
        if self.gateway:
            self.world.at(0.002, self.gateway.deliver, self.owner, id, body)
        elif self.own_egress:
            self.own_egress.put(self.owner, id, body)

    def command(self, k: int) -> None:
        if k != self.done + 1:  # applied already, or its predecessor is still to be sent again
            return
        self.done = k
        if self.world.mutant == "early":
            self.out(self._next_id(), ("ack", k))
            if k % 5 == 0:
                self.save()
            return
        self.held.append((self._next_id(), ("ack", k)))
        if self.world.mutant == "applied":
            self.covered = k
            if self.gateway:
                self.world.at(0.002, self.gateway.covered, k)
        self.save()

    def turn(self, response: int) -> None:
        """Cancel: purge, then the terminal event, then the next response."""
        if not self.alive or self.paused or response != self.response:
            return
        if response:
            self.buffer = [event for event in self.buffer if event[1][:2] != ("media", response)]
            self.held = [event for event in self.held if event[1][:2] != ("media", response)]
            if self.gateway:
                self.world.at(0.002, self.gateway.invalidate, self.owner, response)
            elif self.own_egress:
                self.own_egress.invalidate(self.owner, response)
            self.held.append((self._next_id(), ("end", response)))
        self.response, self.unit = response + 1, 0
        self.held.append((self._next_id(), ("open", self.response)))
        self.save()
        self.world.at(self.world.random.uniform(0.1, 0.5), self.turn, self.response)

    def media(self) -> None:
        if not self.alive or self.paused or self.world.now > self.world.QUIET:
            return
        self.world.at(0.04, self.media)
        if not self.response:
            return
        event = (self._next_id(), ("media", self.response, self.unit))
        self.unit += 1
        if self.held:  # behind a structural event
            self.held.append(event)
        else:
            self.out(*event)

    def save(self) -> None:
        """One checkpoint at a time; what is held leaves when it is confirmed."""
        if self.saving:
            return
        self.saving = True
        self.number += 1
        done, held = self.done, list(self.held)
        outbox = [event for event in self.buffer + held if event[1][0] != "media"]
        state = (done, outbox, self.reported, self.egress_number, self.reported_id, self.response)

        def answered(answer: tuple[Any, ...]) -> None:
            self.saving = False
            if not self.alive:
                return
            if self.paused:
                self.inbox.append((answered, (answer,)))
                self.saving = True
                return
            if answer[0] == "timeout":
                self.save()
                return
            if answer[0] == "fenced":
                self.alive = False
                return
            self.covered = max(self.covered, done)
            for event in held:
                if event in self.held:
                    self.held.remove(event)
                    self.out(*event)
            if self.gateway:
                self.world.at(0.002, self.gateway.covered, done)
            if self.held:
                self.save()

        self.world.call(self.world.store.checkpoint, answered, self.owner, self.number, state)

    def acked(self, id: Id, seq: int) -> None:
        self.buffer = [event for event in self.buffer if event[0] > id]
        self.reported, self.reported_id = max(self.reported, seq), max(self.reported_id, id)
