"""What a stage worker counts: plain numbers where things happen, told to the declared metrics at each scrape.

Rule 1. Everything here belongs to the link thread.
Rule 2. What happens with every unit or step costs an addition, no more: four observations of a step cost as
        much as the step itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import Histogram

from duologue.runtime import metrics


class Spread:
    """A histogram that is cheap to add to. `tell` moves what came since into the metric."""

    __slots__ = ("_bounds", "_counts", "_metric", "_sum")

    def __init__(self, metric: Histogram) -> None:
        self._metric = metric
        # The library has no way to add many observations at once, so its buckets are added to directly.
        self._bounds = metric._upper_bounds
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_all(self, values: Sequence[float]) -> None:
        bounds, counts = self._bounds, self._counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def tell(self) -> None:
        for place, count in enumerate(self._counts):
            if count:
                self._metric._buckets[place].inc(count)
                self._counts[place] = 0
        self._metric._sum.inc(self._sum)
        self._sum = 0.0


class StageCounts:
    """Of one stage of one pipeline."""

    def __init__(self, pipeline: str, stage: str) -> None:
        self._labels = (pipeline, stage)
        self._units = metrics.WORKER_UNITS.labels(pipeline, stage)
        self._batch = Spread(metrics.WORKER_BATCH.labels(pipeline, stage))
        self._queue = Spread(metrics.WORKER_QUEUE.labels(pipeline, stage))
        self._compute = Spread(metrics.WORKER_COMPUTE.labels(pipeline, stage))
        self._deadlines = metrics.WORKER_DEADLINES.labels(pipeline, stage)
        self._replayed = metrics.WORKER_REPLAYED.labels(pipeline, stage)
        self._told = self._told_replayed = 0
        self.units = 0
        self.replayed = 0
        """Of these, what was heard before by stages that were lost."""
        self.failed: dict[str, int] = {}
        """Units, by code."""
        self.stale: dict[str, int] = {}
        """What was dropped: incarnation | epoch | stray."""

    def step(self, waits_s: Sequence[float], compute_s: float) -> None:
        """One step, over units that waited so long for it."""
        units = len(waits_s)
        self.units += units
        self._batch.add(units)
        self._compute.add(compute_s)
        self._queue.add_all(waits_s)

    def fail(self, code: str) -> None:
        self.failed[code] = self.failed.get(code, 0) + 1
        metrics.WORKER_FAILED.labels(*self._labels, code).inc()
        if code == "stage_timeout":
            self._deadlines.inc()

    def drop(self, kind: str) -> None:
        self.stale[kind] = self.stale.get(kind, 0) + 1
        metrics.WORKER_STALE.labels(kind).inc()

    def show(self, slots_used: int, slots_total: int, state_bytes: int, kv_tokens: int = 0) -> None:
        """Tell everything, for a scrape."""
        self._units.inc(self.units - self._told)
        self._told = self.units
        self._replayed.inc(self.replayed - self._told_replayed)
        self._told_replayed = self.replayed
        for spread in (self._batch, self._queue, self._compute):
            spread.tell()
        metrics.WORKER_SLOTS_USED.labels(*self._labels).set(slots_used)
        metrics.WORKER_SLOTS.labels(*self._labels).set(slots_total)
        metrics.WORKER_STATE_BYTES.labels(*self._labels).set(state_bytes)
        metrics.WORKER_KV_TOKENS.labels(*self._labels).set(kv_tokens)


class WorkerCounts:
    """Of the whole worker."""

    def __init__(self) -> None:
        self.stale_messages = 0
        self.overflows = 0
        self.orphans_freed = 0

    def refuse(self, pipeline: str, code: str) -> None:
        metrics.WORKER_REFUSED.labels(pipeline, code).inc()

    def export(self, pipeline: str, outcome: str) -> None:
        """A session's state was asked for: `exported`, or the code of the refusal."""
        metrics.WORKER_EXPORTS.labels(pipeline, outcome).inc()

    def stale(self) -> None:
        """A message of another fence."""
        self.stale_messages += 1
        metrics.WORKER_STALE.labels("fence").inc()

    def overflow(self) -> None:
        self.overflows += 1
        metrics.WORKER_OUTPUT_FULL.inc()

    def orphan(self) -> None:
        self.orphans_freed += 1
        metrics.WORKER_ORPHANS.inc()

    def show_pending(self, peer: str, kept_bytes: int) -> None:
        metrics.WORKER_OUTPUT_PENDING.labels(peer).set(kept_bytes)
