"""What a bridge counts, told to the declared metrics. Values of labels are few: directions, reasons, known codes."""

from __future__ import annotations

from duologue.models.bridge import refusals
from duologue.runtime import metrics


class Meter:
    """Of one pipeline. Labels are resolved once."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._links = metrics.WORKER_UPSTREAM_LINKS.labels(pipeline)
        self._stale = metrics.WORKER_UPSTREAM_STALE.labels(pipeline)
        self._full = {way: metrics.WORKER_UPSTREAM_FULL.labels(pipeline, way) for way in ("up", "down")}

    def links(self, count: int) -> None:
        self._links.set(count)

    def error(self, code: str) -> None:
        """An upstream server told an error."""
        metrics.WORKER_UPSTREAM_ERRORS.labels(self._pipeline, refusals.label(code)).inc()

    def stale(self) -> None:
        """An event of a response that was cancelled, or that nobody knows."""
        self._stale.inc()

    def full(self, way: str) -> None:
        self._full[way].inc()

    def ended(self, reason: str) -> None:
        """A connection: refused | unavailable | lost | resumed."""
        metrics.WORKER_UPSTREAM_ENDED.labels(self._pipeline, reason).inc()
