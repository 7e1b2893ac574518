"""Worlds whose shards die, stand still and wake up: their sessions go on at another one, and nobody hears of it but in
the end of what was being said.

Whatever else a world checks holds here too. What is more: a client keeps its socket when a shard is lost, and a shard
that was replaced writes nothing any more.
"""

from __future__ import annotations

import asyncio

from simulation.faults import Faults
from simulation.nodes import ShardNode, process_of
from simulation.world import LIMITS, World

from duologue.session.resident import Resident
from duologue.store.holdings import ScriptedHoldings
from duologue.store.memory import run_now
from duologue.store.ports import StoreUnavailable
from duologue.store.sessions import ScriptedSessions

APART_S = 5.0
"""Single faults: the next one comes when the last is over, and so long after a shard was lost."""
ORPHANS_S = 30.0
"""So long a session that nobody asks for may wait until another shard ends it."""
PAUSES_S = (0.5, 3.0, 6.0, 10.0)


class AdoptionWorld(World):
    """See the module."""

    sweep_s = 1.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.loop.stands_still = self._stands_still
        self.shard_struck_at = -APART_S
        self.stopped: list[ShardNode] = []
        self.draining = False

    def make_faults(self) -> Faults:
        return AdoptionFaults(self)

    def _stands_still(self, handle: asyncio.Handle) -> bool:
        if not self.stopped:
            return False
        node = process_of(handle)
        if node is None or node.held is None:
            return False
        node.held.append(handle)
        return True

    def kill_shard(self, node: ShardNode, restart_s: float) -> None:
        self.count["sessions at a dying shard"] += len(node.shard.manager)
        node.kill()
        self.loop.call_later(restart_s, self._restart_shard, node.name)

    def _restart_shard(self, name: str) -> None:
        """As a supervisor does it."""
        if not self.failed:
            self.loop.create_task(self._new_shard(name))

    async def _new_shard(self, name: str) -> None:
        while True:
            node = self.make_shard(name)
            if await node.spawn(_started(node)):
                break
            node.alive = False
            await asyncio.sleep(0.5)
        self.shards = [known for known in self.shards if known.name != name]
        self.shards.append(node)

    def make_shard(self, name: str) -> ShardNode:
        return ShardNode(self, name, self.pipelines()[1], LIMITS)

    def drain_shard(self, node: ShardNode) -> None:
        """As a rolling deployment does it: SIGTERM, and another process under the same name."""
        self.count["sessions at a draining shard"] += len(node.shard.manager)
        self.draining = True
        self.loop.create_task(self._drain(node))

    async def _drain(self, node: ShardNode) -> None:
        await node.spawn(node.stop())
        self.count["hand-overs"] += node.shard.hand_over.outcomes["handed_over"]
        node.alive = False
        await self._new_shard(node.name)
        self.draining = False

    def pause_shard(self, node: ShardNode, seconds: float) -> None:
        self.count["sessions at a stopped shard"] += len(node.shard.manager)
        node.stop_still()
        self.stopped.append(node)
        self.loop.call_later(seconds, self._wake, node)

    def _wake(self, node: ShardNode) -> None:
        self.stopped.remove(node)
        self.note(f"{node.name} wakes up")
        node.go_on()

    def settled(self) -> bool:
        """Every shard is there, and every session has one."""
        return (
            not self.stopped
            and not self.draining
            and len(self.shards) == 2
            and all(shard.alive for shard in self.shards)
            and all(client.over.is_set() or client.attached.is_set() for client in self.clients if client.lives)
            and not any(
                attachment.homeless
                for gateway in self.gateways
                if gateway.alive
                for attachment in gateway.service.attachments
            )
        )

    def may_lose_socket(self, reason: str) -> bool:
        return reason != "shard_lost"

    def homes_of(self, session_id: str) -> list[Resident]:
        """Without shards that were replaced and may not know it yet: they have to, by the end."""
        found = run_now(ScriptedSessions(self.depot.server).look_up(session_id))
        return [home for home in super().homes_of(session_id) if found and home.runner.owner == found.owner]

    def _orphans(self) -> bool:
        """Sessions are left that a dead shard held."""
        holders = run_now(ScriptedHoldings(self.depot.server).holders())
        return bool(set(holders) - {shard.incarnation for shard in self.shards})

    async def _end(self) -> None:
        await self.until(self.settled)
        until = self.now + ORPHANS_S
        await self.until(lambda: self.now >= until or not self._orphans())
        self.count["adoptions"] += sum(shard.shard.inheritance.outcomes["adopted"] for shard in self.shards)
        await super()._end()


async def _started(node: ShardNode) -> bool:
    try:
        return await node.start()
    except StoreUnavailable:
        return False


class AdoptionFaults(Faults):
    """Shards die and stand still, beside what else may happen."""

    def __init__(self, world: AdoptionWorld) -> None:
        super().__init__(world)
        self._of = world
        others: tuple[str, ...] = (
            "drop",
            "takeover",
            "gateway killed",
            "replies lost",
            "late execution",
            "journal connection cut",
        )
        others += ("bus late", "gateway link broken", "worker link broken", "store stalls", "slow reader")
        self._kinds = {name: self._kinds[name] for name in others} | {
            "shard killed": (16, self._kill_shard),
            "shard stopped": (8, self._stop_shard),
            "shard drained": (8, self._drain_shard),
        }

    def _waits(self) -> bool:
        world = self._of
        return super()._waits() or not world.settled() or world.now < world.shard_struck_at + APART_S

    def _victim(self) -> ShardNode | None:
        shards = [shard for shard in self._of.shards if shard.alive and len(shard.shard.manager)]
        return self._random.choice(shards) if shards else None

    def _kill_shard(self) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        self._of.shard_struck_at = self._of.now
        self._of.kill_shard(victim, self._random.choice((0.3, 1.5, 6.0)))
        return True

    def _drain_shard(self) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        self._of.shard_struck_at = self._of.now
        self._of.drain_shard(victim)
        return True

    def _stop_shard(self) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        seconds = self._random.choice(PAUSES_S)
        self._of.shard_struck_at = self._of.now + seconds
        self._of.pause_shard(victim, seconds)
        return True
