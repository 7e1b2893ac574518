"""Worlds whose workers die and whose pipeline rebuilds contexts from the input: nothing may be forgotten untold.

The truth is what the first stage was given, unit by unit, whatever worker had it: a context must be all of that, in
its order, each unit once. Where it is not, its client was told (`context_lost`).
"""

from __future__ import annotations

import asyncio
import base64
import functools
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from simulation.client import Client
from simulation.faults import Faults
from simulation.nodes import WorkerNode
from simulation.script import session_of
from simulation.world import World

from duologue.model.catalog import find_pipeline
from duologue.model.engine import Emission, StageUnit
from duologue.model.pipeline import PipelineSpec
from duologue.models.loopback.heads import CONTINUATION, decode_head
from duologue.session.pipelines import Pipelines, load_served
from duologue.stages.door import Binding
from duologue.stages.hosted import HostedStage
from duologue.store.memory import run_now
from duologue.store.ports import StoreUnavailable

PIPELINE = Path(__file__).parents[1] / "pipelines" / "loopback-heard.toml"
KILL_EVERY_S = 4.0
"""Two deaths at which one unit is under way end its session, and that is right: they are further apart."""
ON_ITS_WAY_S = 0.3
"""No longer is a command on its way to the shard."""
BACK_S = 4.0
"""So long after it lost its worker a session may wait for another."""
UNDER_WAY_S = 0.6
"""No longer is a unit in the pipeline."""
_Append = Callable[[Sequence[StageUnit]], Sequence[Emission]]


@functools.cache
def _pipelines() -> tuple[tuple[PipelineSpec, ...], Pipelines]:
    specs = (find_pipeline(str(PIPELINE)),)
    return specs, load_served(specs)


class Truth:
    """What the model of one session was given."""

    def __init__(self) -> None:
        self.units: dict[int, int] = {}
        """The sound of each unit, by its number."""
        self.given_at: dict[int, float] = {}
        """When each was given for the first time."""
        self.contexts: dict[tuple[str, int], list[int]] = {}
        """What each place in a worker has heard since it was opened."""
        self.forgotten: dict[tuple[str, int], str] = {}
        """Contexts that are not what was given before."""


class RebuildWorld(World):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.truths: dict[str, Truth] = {}
        self.struck_at: list[float] = []
        """When contexts were taken away."""

    def pipelines(self) -> tuple[tuple[PipelineSpec, ...], Pipelines]:
        return _pipelines()

    def make_faults(self) -> Faults:
        return RebuildFaults(self)

    def session_of(self, client: Client) -> dict[str, Any]:
        session = session_of(client)
        session["model"] = "loopback-heard"
        # What fails of a unit in a later stage has been heard by the first, and is not heard again.
        session["extra_body"]["loopback"].pop("fail", None)
        return session

    def sound_of(self, event_id: str, ms: int) -> str:
        """No two are alike."""
        return base64.b64encode(random.Random(event_id).randbytes(ms * 32)).decode()

    def make_worker(self, group: str, specs: tuple[PipelineSpec, ...]) -> WorkerNode:
        node = WorkerNode(self, f"worker-{group}", group, specs)
        node._registration.join = _patient(node._registration.join)  # type: ignore[method-assign]
        for stage in node.worker.stages.values():
            if stage.index == 0:
                stage.engine.append_batch = self._listening(node, stage)  # type: ignore[assignment, method-assign]
        return node

    def restart_worker(self, group: str) -> None:
        """As a supervisor does it."""
        if not self.failed and not self._stopping:
            self._starting.add(birth := self.loop.create_task(self._new_worker(group)))
            birth.add_done_callback(self._starting.discard)

    async def _new_worker(self, group: str) -> None:
        node = self.make_worker(group, self.pipelines()[0])
        self.workers = [known for known in self.workers if known.name != node.name]
        self.workers.append(node)
        await node.spawn(node.start())

    # -- the truth -------------------------------------------------------------------------------------

    def _listening(self, node: WorkerNode, stage: HostedStage) -> _Append:
        append: _Append = stage.engine.append_batch

        def append_batch(batch: Sequence[StageUnit]) -> Sequence[Emission]:
            for unit in batch:
                holder = stage._cursors[unit.slot.index].holder
                assert isinstance(holder, Binding)
                self._heard(holder.session_id, (node.incarnation, unit.slot.incarnation), unit)
            return append(batch)

        return append_batch

    def _heard(self, session_id: str, place: tuple[str, int], unit: StageUnit) -> None:
        """The first stage is given one unit of this session."""
        if decode_head(unit.head).flags & CONTINUATION:
            return
        sound = crc32(unit.frames[0])
        truth = self.truths.setdefault(session_id, Truth())
        context = truth.contexts.setdefault(place, [])
        context.append(sound)
        if unit.replay:
            self.count["replayed units"] += 1
            return
        if truth.units.setdefault(unit.unit, sound) != sound:
            self.fail(f"{session_id}: unit {unit.unit} is another sound now")
        truth.given_at.setdefault(unit.unit, self.now)
        wrong = self._wrong(session_id, truth, context, unit.unit)
        if wrong and place not in truth.forgotten:
            truth.forgotten[place] = wrong
            self.note(f"{session_id}: at unit {unit.unit}: {wrong}")
        self.count["contexts rebuilt"] += len(truth.contexts) > 1 and not wrong

    def _wrong(self, session_id: str, truth: Truth, context: list[int], through: int) -> str:
        """What a context has that it should not, or the other way round, as far as this unit; empty: it is right."""
        rest = iter(context)
        following = next(rest, None)
        missing = []
        for number in sorted(number for number in truth.units if number <= through):
            if truth.units[number] == following:
                following = next(rest, None)
            else:
                missing.append(number)
        if following is not None:
            return f"it was given {len(context)} units, of which one is out of order, or there twice"
        missing = [number for number in missing if not self._cancelled(session_id, truth.given_at[number])]
        return f"it lacks the units {missing} of {len(truth.units)}" if missing else ""

    def _cancelled(self, session_id: str, given_at: float) -> bool:
        """It was under way when its worker was lost, and its user has cancelled what was under way since."""
        cut_at = max((c.record.cut_asked_at for c in self.clients if c.record.session_id == session_id), default=0.0)
        return any(
            at - UNDER_WAY_S < given_at < at + UNDER_WAY_S and cut_at > given_at - ON_ITS_WAY_S for at in self.struck_at
        )

    def check_at_rest(self, client: Client) -> None:
        if self.now > max(self.struck_at, default=-BACK_S) + BACK_S:
            super().check_at_rest(client)  # else its input may wait for a worker
        record = client.record
        truth = self.truths.get(record.session_id)
        if client.turn_based or record.gapped or truth is None:
            return  # of a turn that was given up nobody knows how much of it was heard
        told = record.told_lost
        if len(truth.forgotten) > told:
            record.fail(f"contexts were forgotten, {told} of them told: {list(truth.forgotten.values())}")
        self.count["contexts lost and told"] += len(truth.forgotten)


def _patient(join: Callable[[], Awaitable[None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """What a supervisor does with a worker that finds no store: start it again."""

    async def join_in_the_end() -> None:
        while True:
            try:
                return await join()
            except StoreUnavailable:
                await asyncio.sleep(0.5)

    return join_in_the_end


class RebuildFaults(Faults):
    """More of what takes contexts away, less of the rest."""

    def __init__(self, world: RebuildWorld) -> None:
        super().__init__(world)
        self._rebuilds = world
        self._killed_at = -KILL_EVERY_S
        others = ("drop", "takeover", "slow reader", "store stalls", "replies lost", "late execution", "bus late")
        self._kinds = {
            "worker killed": (8, self._kill_worker),
            "worker link broken": (6, self._break_worker_link),
            "gateway killed": (1, self._kill_gateway),
            **{name: (2, self._kinds[name][1]) for name in others},
        }

    def _kill_worker(self) -> bool:
        world = self._rebuilds
        if world.now < self._killed_at + KILL_EVERY_S:
            return False
        node = self._random.choice(world.workers)
        self._struck()
        node.alive = False
        run_now(node.endpoint.abort())
        for task in list(node.tasks):
            task.cancel()
        world.loop.call_later(self._random.uniform(0.2, 1.5), world.restart_worker, node.name.removeprefix("worker-"))
        return True

    def _struck(self) -> None:
        self._killed_at = self._world.now
        self._rebuilds.struck_at.append(self._world.now)

    def _break_worker_link(self) -> bool:
        if self._world.now < self._killed_at + KILL_EVERY_S:
            return False
        self._struck()
        return super()._break_worker_link()
