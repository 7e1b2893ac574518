"""Worlds with two workers of each group, which are drained in turn under sessions that speak, among other faults.

The truth is that of `rebuild_world`: what the first stage was given, unit by unit. A state that moves takes its context
along, so a unit that was given to the old worker after its state had left, or to both, shows in the context. Nothing is
rebuilt here: a context that is lost with its worker begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from simulation.client import Client
from simulation.nodes import WorkerNode
from simulation.rebuild_world import RebuildFaults, RebuildWorld, _patient
from simulation.script import session_of
from simulation.world import World

from duologue.model.engine import Slot, StageUnit
from duologue.model.pipeline import PipelineSpec
from duologue.session.pipelines import Pipelines
from duologue.stages.door import Binding
from duologue.stages.hosted import HostedStage

DRAIN_S = 4.0
"""So long a drained worker's sessions may take."""
ORPHAN_S = 2.0
"""A session that lost its worker's link goes to the other one, and what it left is free within the world's time."""
LATE_S = 1.0
"""Longer than it takes every shard to hear that the time is over."""


class MovingWorld(RebuildWorld):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._away: dict[str, list[int]] = {}
        """The context of the state that each session gave away last."""
        self.drains = 0
        """Under way now."""
        self._left_places: set[tuple[str, int]] = set()

    def pipelines(self) -> tuple[tuple[PipelineSpec, ...], Pipelines]:
        return World.pipelines(self)

    def session_of(self, client: Client) -> dict[str, Any]:
        session = session_of(client)
        # What fails of a unit in a later stage has been heard by the first, and is not heard again.
        session["extra_body"].get("loopback", {}).pop("fail", None)
        return session

    def _heard(self, session_id: str, place: tuple[str, int], unit: StageUnit) -> None:
        known = self.truths.get(session_id)
        if place in self._left_places:
            return
        if known is not None and place not in known.contexts:
            self._left_places.update(known.contexts)
            del self.truths[session_id]  # nobody has given it what was heard before
        super()._heard(session_id, place, unit)

    def make_faults(self) -> RebuildFaults:
        return MovingFaults(self)

    def worker_places(self, specs: tuple[PipelineSpec, ...]) -> Sequence[str]:
        return [f"{group}.{n}" for group in specs[0].workers for n in (1, 2)]

    def make_worker(self, group: str, specs: tuple[PipelineSpec, ...]) -> WorkerNode:
        node = WorkerNode(self, f"worker-{group}", group.partition(".")[0], specs)
        node.worker.door.orphan_s = ORPHAN_S
        node._registration.join = _patient(node._registration.join)  # type: ignore[method-assign]
        for stage in node.worker.stages.values():
            if stage.index == 0:
                stage.engine.append_batch = self._listening(node, stage)  # type: ignore[assignment, method-assign]
                self._watch_moves(node, stage)
        return node

    def _watch_moves(self, node: WorkerNode, stage: HostedStage) -> None:
        gives, takes = stage.engine.export_state, stage.engine.import_state

        def place_of(slot: Slot) -> tuple[str, tuple[str, int]]:
            holder = stage._cursors[slot.index].holder
            assert isinstance(holder, Binding)
            return holder.session_id, (node.incarnation, slot.incarnation)

        def export_state(slot: Slot) -> bytes | None:
            session_id, place = place_of(slot)
            truth = self.truths.get(session_id)
            self._away[session_id] = list(truth.contexts.get(place, ())) if truth is not None else []
            return gives(slot)

        def import_state(slot: Slot, state: bytes) -> None:
            takes(slot, state)
            session_id, place = place_of(slot)
            self.count["states moved"] += 1
            if session_id in self.truths:
                self.truths[session_id].contexts[place] = list(self._away[session_id])

        stage.engine.export_state = export_state  # type: ignore[method-assign]
        stage.engine.import_state = import_state  # type: ignore[method-assign]

    def begin_drain(self, node: WorkerNode) -> None:
        self._starting.add(drain := self.loop.create_task(self._drain(node)))
        self.drains += 1
        drain.add_done_callback(self._drained)

    def _drained(self, drain: asyncio.Task[None]) -> None:
        self._starting.discard(drain)
        self.drains -= 1

    async def _drain(self, node: WorkerNode) -> None:
        """Take it out of service, and start it again when it is empty or the time is over."""
        with node.here():
            node.worker.drain(DRAIN_S)
        over = self.now + DRAIN_S + LATE_S
        await self.until(lambda: not node.alive or node.worker.drained.is_set() or self.now > over)
        if not node.alive or self.failed:
            return
        self.count["drained empty"] += node.worker.drained.is_set()
        self.struck_at.append(self.now)
        await node.spawn(node.stop())
        node.alive = False
        await self._new_worker(node.name.removeprefix("worker-"))


class MovingFaults(RebuildFaults):
    """Mostly drains."""

    def __init__(self, world: MovingWorld) -> None:
        super().__init__(world)
        self._moving = world
        self._kinds["worker drained"] = (24, self._drain_worker)

    # A worker dies before or after another one is drained, never meanwhile: a shard that the store does not answer goes
    # to a worker that it does not know to be drained, is refused, and counts that as a second death of its units.

    def _kill_worker(self) -> bool:
        return not self._moving.drains and super()._kill_worker()

    def _break_worker_link(self) -> bool:
        return not self._moving.drains and super()._break_worker_link()

    def _drain_worker(self) -> bool:
        world = self._moving
        there = [node for node in world.workers if node.alive and node.worker.accepting]
        twice = [node for node in there if any(self._other(node, one) for one in there)]
        if not twice:
            return False
        node = self._random.choice(twice)
        world.begin_drain(node)
        return True

    @staticmethod
    def _other(node: WorkerNode, one: WorkerNode) -> bool:
        return one is not node and one.name.partition(".")[0] == node.name.partition(".")[0]
