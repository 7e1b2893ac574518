"""The stage workers this shard can reach: who is registered, whose link is up, who has a place free.

Rule 1. A worker takes sessions when both are true: it is in the roster and its link is live, and both speak
        of the same incarnation.
Rule 2. A worker that is missing from the roster is hung up only if its link is down too: a store that
        forgot is no death.
Rule 3. A worker that had no room is not asked again before the roster has news of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from duologue.bus.link import Link
from duologue.model.pipeline import PipelineSpec
from duologue.model.records import WorkerRecord
from duologue.store.ports import Registration

BEHIND_S: Final = 0.5
"""A worker whose units wait so long takes more sessions only if no other has room."""

_log = logging.getLogger("duologue.session")
_decoder = msgspec.msgpack.Decoder(WorkerRecord)


class Worker:
    """One stage worker. `bound` counts, for each pipeline, the sessions of this shard that it holds; `full` names
    those for which it has said that it has no room."""

    __slots__ = ("bound", "endpoint", "full", "incarnation", "link", "name", "record")

    def __init__(self, name: str) -> None:
        self.name = name
        self.endpoint = ""
        self.incarnation = ""
        self.record: WorkerRecord | None = None
        self.link: Link | None = None
        self.bound: dict[str, int] = {}
        self.full: set[str] = set()

    @property
    def live(self) -> bool:
        return self.link is not None and self.record is not None and self.link.peer.incarnation == self.incarnation

    @property
    def lag_s(self) -> float:
        """How long the oldest unit waits in any of its stages: they share a machine."""
        return max((stage.unit_lag_s for stage in self.record.stages), default=0.0) if self.record is not None else 0.0

    def exports(self, pipeline: PipelineSpec, stages: Sequence[int]) -> bool:
        """Whether what these stages hold can be taken along to or from another worker."""
        known = self.record.stages if self.record is not None else ()
        return {one.stage for one in known if one.pipeline == pipeline.name and one.exports}.issuperset(stages)

    def free(self, pipeline: PipelineSpec, stages: Sequence[int]) -> int:
        """How many more sessions of this pipeline fit, as far as is known here; the worker decides."""
        if not self.live or self.record is None or not self.record.accepting or pipeline.name in self.full:
            return 0
        places = {s.stage: s for s in self.record.stages if s.pipeline == pipeline.name}
        ours = self.bound.get(pipeline.name, 0)
        free = -1
        for stage in stages:
            known = places.get(stage)
            if known is None:
                return 0
            here = known.slots_total - max(known.slots_used, ours)
            free = here if free < 0 else min(free, here)
        return max(0, free)


class StageWorkers:
    """All of them. `dial` and `hang_up` are the endpoint's."""

    def __init__(self, dial: Callable[[str, str], None], hang_up: Callable[[str], None]) -> None:
        self._dial = dial
        self._hang_up = hang_up
        self._workers: dict[str, Worker] = {}
        self.queue_full = 0
        """Messages that were not taken: the link had no credit and too many waited for it."""

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def update(self, members: Iterable[Registration]) -> None:
        """What the roster says now. Only ever called with an answer of the store."""
        seen = set()
        for member in members:
            if member.kind != "worker":
                continue
            try:
                record = _decoder.decode(member.extra)
            except msgspec.DecodeError as error:
                _log.warning("worker %s registers what this version cannot read: %s", member.id, error)
                continue
            seen.add(member.id)
            worker = self._workers.get(member.id)
            if worker is None:
                worker = self._workers[member.id] = Worker(member.id)
            if worker.endpoint != member.endpoint:
                worker.endpoint = member.endpoint
                self._dial(member.id, member.endpoint)
            worker.incarnation = member.incarnation
            worker.record = record
            worker.full.clear()
        for name in [name for name, w in self._workers.items() if name not in seen and w.link is None]:
            del self._workers[name]
            self._hang_up(name)

    def link_ready(self, link: Link) -> None:
        worker = self._workers.get(link.peer.name)
        if worker is None:
            worker = self._workers[link.peer.name] = Worker(link.peer.name)
        worker.link = link
        worker.bound.clear()

    def link_lost(self, link: Link) -> None:
        worker = self._workers.get(link.peer.name)
        if worker is not None and worker.link is link:
            worker.link = None
            worker.bound.clear()

    def had_no_room(self, link: Link, pipeline: PipelineSpec) -> None:
        """It has refused a session of this pipeline for want of room."""
        worker = self._workers.get(link.peer.name)
        if worker is not None and worker.link is link:
            worker.full.add(pipeline.name)

    def choose(self, pipeline: PipelineSpec) -> Mapping[int, Worker] | None:
        """The worker of each stage: of every group the one with the most room, of those with as much the one whose
        units wait the least; one that falls behind only if all do. None: a group has no room."""
        chosen: dict[int, Worker] = {}
        for group in pipeline.workers:
            stages = pipeline.stages_of(group)
            best = self._best(pipeline, group, self._workers.values())
            if best is None:
                return None
            for stage in stages:
                chosen[stage] = best
        return chosen

    def heir(self, old: Worker, pipeline: PipelineSpec, stages: Sequence[int]) -> Worker | None:
        """Who can go on with what these stages of that worker hold; None: nobody has room."""
        if old.record is None:
            return None
        others = [worker for worker in self._workers.values() if worker is not old and worker.exports(pipeline, stages)]
        return self._best(pipeline, old.record.group, others)

    @staticmethod
    def _best(pipeline: PipelineSpec, group: str, workers: Iterable[Worker]) -> Worker | None:
        best: Worker | None = None
        most = (False, 0, 0.0)
        for worker in workers:
            if worker.record is not None and worker.record.group == group:
                free, lag_s = worker.free(pipeline, pipeline.stages_of(group)), worker.lag_s
                rank = (lag_s < BEHIND_S, free, -lag_s)
                if free and (best is None or rank > most):
                    best, most = worker, rank
        return best

    def ready(self, pipeline: PipelineSpec) -> bool:
        """Every group has a live worker that serves its stages."""
        return not self.missing(pipeline)

    def missing(self, pipeline: PipelineSpec) -> list[str]:
        """The groups without a live worker."""
        return [g for g in pipeline.workers if not any(_serves(w, pipeline, g) for w in self._workers.values())]


def _serves(worker: Worker, pipeline: PipelineSpec, group: str) -> bool:
    if not worker.live or worker.record is None or worker.record.group != group:
        return False
    here = {s.stage for s in worker.record.stages if s.pipeline == pipeline.name}
    return here.issuperset(pipeline.stages_of(group))
