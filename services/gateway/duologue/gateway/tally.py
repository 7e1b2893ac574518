"""The gateway's counts. Plain integers on the hot path; they become metrics when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from duologue.gateway.departures import OUTCOMES
from duologue.runtime import metrics
from duologue.runtime.metric_registry import render

if TYPE_CHECKING:
    from duologue.gateway.attachment import Attachment
    from duologue.gateway.context import Gateway

KINDS: Final = ("gateway", "bus", "store", "process")
"""What this process shows."""

_COUNTERS: Final = {
    "frames_in": metrics.GATEWAY_FRAMES_IN,
    "bytes_in": metrics.GATEWAY_BYTES_IN,
    "frames_out": metrics.GATEWAY_FRAMES_OUT,
    "bytes_out": metrics.GATEWAY_BYTES_OUT,
    "socket_waits": metrics.GATEWAY_SOCKET_WAITS,
    "uncovered_full": metrics.GATEWAY_UNCOVERED_FULL,
    "replayed": metrics.GATEWAY_REPLAYED,
    "purged": metrics.GATEWAY_PURGED,
    "takeovers": metrics.GATEWAY_TAKEOVERS,
    "unnumbered_full": metrics.GATEWAY_UNNUMBERED_FULL,
    "chores_dropped": metrics.GATEWAY_CHORES_DROPPED,
    "reasserted": metrics.GATEWAY_REASSERTED,
}


MOVES: Final = ("ok", "ended", "given_up")


class Tally:
    """Counts since the process started."""

    def __init__(self) -> None:
        for result in MOVES:
            metrics.GATEWAY_MOVES.labels(result)  # shown at 0, so that the first one is a rise
        for outcome in OUTCOMES:
            metrics.GATEWAY_KEPT.labels(outcome)
        self.frames_in = self.bytes_in = self.frames_out = self.bytes_out = 0
        self.socket_waits = self.uncovered_full = self.replayed = 0
        self.purged = self.takeovers = 0
        self.unnumbered_full = self.chores_dropped = self.reasserted = 0
        self.stale: Counter[str] = Counter()
        """Messages that meant nothing any more, by kind."""
        self._told: Counter[str] = Counter()
        self._stale_told: Counter[str] = Counter()

    def refused(self, reason: str) -> None:
        """A connection or a session was turned away."""
        metrics.GATEWAY_REFUSED.labels(reason).inc()

    def bad_frame(self, code: str) -> None:
        metrics.GATEWAY_BAD_FRAMES.labels(code).inc()

    def closed(self, code: int) -> None:
        """A socket was closed with this code (1006: without one)."""
        metrics.GATEWAY_CLOSED.labels(str(code)).inc()

    def resumed(self, result: str, seconds: float | None = None) -> None:
        """A resume came to its end; `seconds` of one that was served, its replay included."""
        metrics.GATEWAY_RESUMES.labels(result).inc()
        if seconds is not None:
            metrics.GATEWAY_RESUME_LATENCY.observe(seconds)

    def moved(self, result: str, seconds: float | None = None) -> None:
        """An attachment whose shard was lost has another one, or none; `seconds` without one."""
        metrics.GATEWAY_MOVES.labels(result).inc()
        if seconds is not None:
            metrics.GATEWAY_MOVE.observe(seconds)

    def exposition(self, gateway: Gateway) -> bytes:
        """The text for Prometheus."""
        self.purged, self.chores_dropped = gateway.pumps.purged, gateway.chores.dropped
        for name, metric in _COUNTERS.items():
            count: int = getattr(self, name)
            metric.inc(count - self._told[name])
            self._told[name] = count
        self.stale["not attached here"] = gateway.links.stray
        for kind, count in self.stale.items():
            metrics.GATEWAY_STALE.labels(kind).inc(count - self._stale_told[kind])
            self._stale_told[kind] = count
        metrics.GATEWAY_WAITING.set(gateway.waiting())
        metrics.GATEWAY_UNNUMBERED.set(gateway.pumps.unnumbered)
        self._attachments(gateway.attachments)
        return render(KINDS)

    def _attachments(self, attachments: Iterable[Attachment]) -> None:
        dialects: Counter[str] = Counter()
        uncovered = 0
        for attachment in attachments:
            dialects[attachment.dialect.value] += 1
            uncovered += attachment.uncovered.bytes
        for dialect in ("duplex", "openai", "openai-beta"):
            metrics.GATEWAY_ATTACHED.labels(dialect).set(dialects[dialect])
        metrics.GATEWAY_UNCOVERED.set(uncovered)
