"""The store's plain counters as metrics, read when they are scraped: nothing is paid per call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from duologue.runtime.metric_registry import REGISTRIES


class CallTimes(Protocol):
    """What is read of `store.stats.Times`: one count more than there are bounds."""

    @property
    def counts(self) -> Sequence[int]: ...
    @property
    def sum_s(self) -> float: ...


class StoreCounters(Protocol):
    """What is read of `store.stats.StoreStats`."""

    @property
    def bounds_s(self) -> Sequence[float]: ...
    @property
    def calls(self) -> Mapping[str, CallTimes]: ...
    @property
    def failures(self) -> Mapping[tuple[str, str], int]: ...
    @property
    def refusals(self) -> Mapping[tuple[str, str], int]: ...
    @property
    def journal_times(self) -> CallTimes: ...

    memory_used: float
    journal_limit: int
    journal_bytes: int
    journal_appends: int
    journal_trimmed: int
    journal_full: int


class JournalBacklog(Protocol):
    """What is read of the egresses of this process (`delivery.pump.Pumps`)."""

    holes: int

    @property
    def kept_bytes(self) -> int: ...


class Breaker(Protocol):
    """What is read of `delivery.breaker.StoreBreaker`."""

    open: bool
    openings: int


_COUNTS: tuple[tuple[str, str, Callable[[StoreCounters], int]], ...] = (
    ("journal_bytes", "Bytes appended to replay journals.", lambda s: s.journal_bytes),
    ("journal_appends", "Batches appended to replay journals.", lambda s: s.journal_appends),
    ("journal_trimmed_events", "Entries trimmed by the journal's bound.", lambda s: s.journal_trimmed),
    ("journal_full", "Batches not taken because too much was out.", lambda s: s.journal_full),
)


class StoreCollector(Collector):
    """Registers itself under `store`; one per process that has sessions."""

    def __init__(self, counters: StoreCounters, backlog: JournalBacklog, breaker: Breaker) -> None:
        self._counters = counters
        self._backlog = backlog
        self._breaker = breaker
        REGISTRIES["store"].register(self)

    def close(self) -> None:
        REGISTRIES["store"].unregister(self)

    def describe(self) -> Iterable[Metric]:
        return list(self._families())

    def collect(self) -> Iterable[Metric]:
        return list(self._families())

    def _families(self) -> Iterator[Metric]:
        stats = self._counters
        calls = HistogramMetricFamily("duologue_store_call_seconds", "Answered calls to the store.", labels=["script"])
        for script, times in stats.calls.items():
            calls.add_metric([script], *self._buckets(times))
        yield calls
        append = HistogramMetricFamily("duologue_store_journal_append_seconds", "The batches of one loop turn.")
        append.add_metric([], *self._buckets(stats.journal_times))
        yield append
        yield _pairs("duologue_store_failures", "Calls that failed, by kind.", "kind", stats.failures)
        yield _pairs(
            "duologue_store_refusals", "Calls refused by a number, by script and number.", "number", stats.refusals
        )
        for name, help_text, read in _COUNTS:
            yield CounterMetricFamily(f"duologue_store_{name}", help_text, value=read(stats))
        yield GaugeMetricFamily(
            "duologue_store_memory_used_ratio",
            "Share of the memory budget that the fuller server of the store uses; 0: it has none.",
            value=stats.memory_used,
        )
        yield GaugeMetricFamily(
            "duologue_store_journal_limit_bytes",
            "What one journal may hold now: less than its setting while the store is nearly full.",
            value=stats.journal_limit,
        )
        yield GaugeMetricFamily(
            "duologue_store_journal_backlog_bytes",
            "Sent events whose entries are kept until the store is back.",
            value=self._backlog.kept_bytes,
        )
        yield CounterMetricFamily(
            "duologue_store_journal_holes", "Sessions whose journal has lost entries.", value=self._backlog.holes
        )
        yield GaugeMetricFamily(
            "duologue_store_breaker_open_ratio", "1: the store is given up for now.", value=self._breaker.open
        )
        yield CounterMetricFamily(
            "duologue_store_breaker_openings", "Times that the store was given up.", value=self._breaker.openings
        )

    def _buckets(self, times: CallTimes) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, and the sum."""
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*self._counters.bounds_s, float("inf")), times.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), below))
        return buckets, times.sum_s


def _pairs(name: str, help_text: str, label: str, counts: Mapping[tuple[str, str], int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=["script", label])
    for (script, value), count in counts.items():
        family.add_metric([script, value], count)
    return family
