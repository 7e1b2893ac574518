"""A worker's place in the fleet: it registers itself twice a second, once its engines are ready.

Rule 1. While the store is away the worker serves on; it registers again when the store is back.
Rule 2. A process whose id another one has taken over must end: `Replaced`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from duologue.model.records import StageRecord, WorkerRecord, encode_record
from duologue.runtime.grid import until_next
from duologue.stages.worker import StageWorker
from duologue.store.ports import Registration, Registry, StoreUnavailable

_log = logging.getLogger("duologue.stages")

BEAT_S: Final = 0.5


class Replaced(Exception):
    """Another process has taken this worker's id over: this one must end."""


def describe(
    worker: StageWorker,
    group: str,
    id: str,
    incarnation: str,
    endpoint: str,
    metrics_url: str = "",
    operator_token: str = "",
) -> Registration:
    """What the registry is told. Capacity and load are sessions, of the fullest stage of each pipeline."""
    stages = tuple(
        StageRecord(
            stage.pipeline, stage.index, stage.slots.used, stage.slots.total, stage.unit_lag_s, stage.engine.exports
        )
        for stage in worker.stages.values()
    )
    pipelines = tuple(dict.fromkeys(stage.pipeline for stage in stages))
    return Registration(
        kind="worker",
        id=id,
        incarnation=incarnation,
        endpoint=endpoint,
        capacity=sum(min(s.slots_total for s in stages if s.pipeline == name) for name in pipelines),
        load=sum(max(s.slots_used for s in stages if s.pipeline == name) for name in pipelines),
        pipelines=pipelines,
        extra=encode_record(
            WorkerRecord(group, stages, worker.accepting, metrics_url, worker.draining_s, operator_token)
        ),
    )


class WorkerRegistration:
    """`own` describes the worker as it is now."""

    def __init__(self, registry: Registry, own: Callable[[], Registration], expiry_s: float = 2.0) -> None:
        self._registry = registry
        self._own = own
        self._expiry_s = expiry_s
        self.answering = False
        """Whether the last beat was answered."""

    async def join(self) -> None:
        """Take the id over. Raises StoreUnavailable."""
        await self._registry.beat(self._own(), expiry_s=self._expiry_s, join=True)
        self.answering = True

    async def run(self) -> None:
        """Beat until cancelled. Raises Replaced."""
        while True:
            await until_next(BEAT_S)
            await self.beat()

    async def beat(self) -> None:
        """Once. Raises Replaced."""
        try:
            roster = await self._registry.beat(self._own(), expiry_s=self._expiry_s)
        except StoreUnavailable as error:
            if self.answering:
                _log.warning("the registry does not answer: %s", error)
            self.answering = False
            return
        self.answering = True
        if roster.replaced:
            raise Replaced("another process runs under this worker's id")

    async def leave(self) -> None:
        """Sign off; what cannot be told expires by itself."""
        own = self._own()
        try:
            await self._registry.remove(own.kind, own.id, own.incarnation)
        except StoreUnavailable:
            _log.info("signing off was not possible; the registration expires by itself")
