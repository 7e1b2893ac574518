"""What goes wrong in a world, drawn from its seed: when, what, and whom it hits.

Single faults, one after the other: the store's absence is one fault and is not over before everything that was
sent without it is in the journal. What waits for that is tried again a little later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.client import Client
    from simulation.world import World

FIRST_S = 1.5
EVERY_S = (0.3, 1.0)
FEWEST, MOST = 4, 7
AGAIN_S = 0.3


class Faults:
    """`begin` when the system is there. At least three strike, whatever the clients do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.fork("faults")
        self._kinds: dict[str, tuple[int, Callable[[], bool]]] = {
            "drop": (5, self._drop),
            "takeover": (4, self._takeover),
            "resume cut": (3, self._cut_resume),
            "owner replaced": (2, self._replace_owner),
            "gateway killed": (2, self._kill_gateway),
            "slow reader": (6, self._slow_reader),
            "store stalls": (3, self._stall),
            "client leaves while the store stands still": (3, self._leave),
            "replies lost": (3, self._lossy),
            "late execution": (3, self._late),
            "journal connection cut": (3, self._cut_journal),
            "bus late": (3, self._bus_late),
            "gateway link broken": (2, self._break_gateway_link),
            "worker link broken": (1, self._break_worker_link),
        }
        self._left: list[str] = []

    def begin(self) -> None:
        """Draw them, and set the time of the first."""
        names, weights = list(self._kinds), [weight for weight, _ in self._kinds.values()]
        self._left = self._random.choices(names, weights, k=self._random.randint(FEWEST, MOST))
        self._world.loop.call_later(self._random.uniform(0.2, FIRST_S), self._next)

    @property
    def over(self) -> bool:
        """All of them have struck."""
        return not self._left

    def _next(self) -> None:
        world = self._world
        if world.failed or not self._left:
            return
        if self._waits() or not self._kinds[self._left[0]][1]():
            world.loop.call_later(AGAIN_S, self._next)
            return
        name = self._left.pop(0)
        world.note(f"FAULT: {name}")
        world.count[f"fault: {name}"] += 1
        world.faults_struck += 1
        world.last_fault = world.now
        world.loop.call_later(self._random.uniform(*EVERY_S), self._next)

    def _waits(self) -> bool:
        """The store's absence is not over."""
        world = self._world
        return world.depot.troubled or any(
            world.witness.unconfirmed(client.record.session_id)
            for client in world.clients
            if client.lives and not client.over.is_set() and not client.record.gapped
        )

    def _client(self) -> Client | None:
        there = [client for client in self._world.clients if client.attached.is_set() and not client.over.is_set()]
        return self._random.choice(there) if there else None

    # -- sockets and gateways --------------------------------------------------------------------------

    def _drop(self) -> bool:
        client = self._client()
        if client is None:
            return False
        client.drop(self._random.choice((0.0, 0.05, 0.4, 2.0)))
        return True

    def _takeover(self) -> bool:
        client = self._client()
        return client is not None and client.takeover()

    def _cut_resume(self) -> bool:
        """A resume is cut at some point of its way; the token may have been rotated or not."""
        client = self._client()
        if client is None or not client.takeover():
            return False
        delay_s = self._random.uniform(0.001, 0.03)
        self._world.loop.call_later(delay_s, client.drop_attempt, self._random.choice((0.0, 0.1, 1.0)))
        return True

    def _replace_owner(self) -> bool:
        """An heir takes a session over. There are no heirs yet: the world takes it, and nothing may change it any
        more; the old owner has to notice, and let go of everything but the store's keys."""
        client = self._client()
        if client is None or client.record.open is None:
            return False
        self._world.inherit(client)
        return True

    def _kill_gateway(self) -> bool:
        world = self._world
        alive = [gateway for gateway in world.gateways if gateway.ready]
        if len(alive) < 2:
            return False
        gateway = self._random.choice(alive)
        world.purged += gateway.purged
        world.forgets = True
        gateway.kill()
        world.loop.call_later(self._random.uniform(0.2, 1.5), world.restart_gateway, gateway.name)
        return True

    def _slow_reader(self) -> bool:
        """A client stops reading; its model has much to say meanwhile."""
        client = self._client()
        if client is None or client.socket is None:
            return False
        socket = client.socket
        self._world.slow.add(client.number)
        socket.block(True)
        client.talk_on = 12
        self._world.loop.call_later(self._random.choice((0.5, 1.5, 3.0)), socket.block, False)
        return True

    # -- the store -------------------------------------------------------------------------------------

    def _stall(self) -> bool:
        depot = self._world.depot
        depot.stalled_until = self._world.now + self._random.choice((0.1, 0.4, 0.9))
        return True

    def _leave(self) -> bool:
        """Whoever leaves was sent something without the journal. In half of the cases that connection ends as well:
        what its gateway submits as it goes is lost then."""
        world, client = self._world, self._client()
        if client is None or client.socket is None:
            return False
        world.depot.stalled_until = world.now + self._random.choice((0.6, 0.9))
        after_s = self._random.uniform(0.3, 0.55)
        if self._random.random() < 0.5:
            world.loop.call_later(after_s, client.socket.gateway.stores.appender.cut)
        world.loop.call_later(after_s, client.drop, self._random.choice((0.0, 0.05, 0.4, 2.0)))
        client.talk_on = 12
        return True

    def _lossy(self) -> bool:
        self._world.depot.lossy_until = self._world.now + self._random.uniform(0.2, 0.8)
        return True

    def _late(self) -> bool:
        self._world.depot.late_until = self._world.now + self._random.uniform(0.2, 0.8)
        return True

    def _cut_journal(self) -> bool:
        nodes = [node for node in (*self._world.gateways, *self._world.shards) if node.alive]
        self._random.choice(nodes).stores.appender.cut()
        return True

    # -- the bus ---------------------------------------------------------------------------------------

    def _bus_late(self) -> bool:
        world = self._world
        node = self._random.choice([*world.gateways, *world.shards, *world.workers])
        world.weather.slow(node.name, world.now + self._random.uniform(0.3, 1.0), self._random.choice((0.02, 0.2)))
        return True

    def _break_gateway_link(self) -> bool:
        world = self._world
        return self._break(self._random.choice(world.gateways).name, self._random.choice(world.shards).name)

    def _break_worker_link(self) -> bool:
        world = self._world
        return self._break(self._random.choice(world.shards).name, self._random.choice(world.workers).name)

    def _break(self, dialler: str, listener: str) -> bool:
        """One message between them ends the connection, or is lost on the way, which the sequence number tells."""
        self._world.forgets = True
        ends = (dialler, listener) if self._random.random() < 0.5 else (listener, dialler)
        self._world.weather.break_next(*ends, lose=self._random.random() < 0.5)
        return True
