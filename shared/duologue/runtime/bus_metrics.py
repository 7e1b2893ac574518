"""The bus's plain counters as metrics, read when they are scraped: nothing is paid per message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duologue.runtime.metric_registry import REGISTRIES


class LinkCounters(Protocol):
    """What is read of one peer's counters (`bus.stats.LinkStats`)."""

    sent_bytes: int
    sent_batches: int
    sent_messages: int
    received_bytes: int
    received_batches: int
    received_messages: int
    refused: int
    duplicates: int
    blocked: int
    credit_exhausted: int
    credit_exhausted_seconds: float
    lost: dict[str, int]


class BusCounters(Protocol):
    """What is read of an endpoint (`bus.stats.BusStats`)."""

    live: int
    corrupt: int
    hellos_refused: dict[str, int]
    keys_refused: dict[str, int]

    @property
    def links(self) -> Mapping[str, LinkCounters]: ...


_PER_PEER: tuple[tuple[str, str, Callable[[LinkCounters], float]], ...] = (
    ("sent_bytes", "Bytes of messages and frames sent.", lambda s: s.sent_bytes),
    ("sent_batches", "Multipart messages sent.", lambda s: s.sent_batches),
    ("sent_messages", "Messages sent.", lambda s: s.sent_messages),
    ("received_bytes", "Bytes of messages and frames received.", lambda s: s.received_bytes),
    ("received_batches", "Multipart messages received.", lambda s: s.received_batches),
    ("received_messages", "Messages received.", lambda s: s.received_messages),
    ("refused_messages", "Multipart messages of another life or link.", lambda s: s.refused),
    ("duplicate_batches", "Multipart messages that came twice.", lambda s: s.duplicates),
    ("blocked_batches", "Batches that the socket did not take at once.", lambda s: s.blocked),
    ("credit_exhausted", "Times that a peer had granted no more.", lambda s: s.credit_exhausted),
    (
        "credit_exhausted_seconds",
        "Time spent without the credit that was wanted.",
        lambda s: s.credit_exhausted_seconds,
    ),
)


class BusCollector(Collector):
    """Registers itself under `bus`; one per endpoint of the process."""

    def __init__(self, counters: BusCounters) -> None:
        self._counters = counters
        REGISTRIES["bus"].register(self)

    def close(self) -> None:
        REGISTRIES["bus"].unregister(self)

    def describe(self) -> Iterable[Metric]:
        return list(self._families({}))

    def collect(self) -> Iterable[Metric]:
        return list(self._families(self._counters.links))

    def _families(self, links: Mapping[str, LinkCounters]) -> Iterator[Metric]:
        yield GaugeMetricFamily("duologue_bus_live_links", "Live links.", value=self._counters.live)
        for name, help_text, read in _PER_PEER:
            family = CounterMetricFamily(f"duologue_bus_{name}", help_text, labels=["peer"])
            for peer, stats in links.items():
                family.add_metric([peer], read(stats))
            yield family
        lost = CounterMetricFamily("duologue_bus_peers_lost", "Links lost.", labels=["peer", "reason"])
        for peer, stats in links.items():
            for reason, count in stats.lost.items():
                lost.add_metric([peer, reason], count)
        yield lost
        refused = CounterMetricFamily("duologue_bus_hellos_refused", "Handshakes refused.", labels=["reason"])
        for reason, count in self._counters.hellos_refused.items():
            refused.add_metric([reason], count)
        yield refused
        keys = CounterMetricFamily(
            "duologue_bus_keys_refused", "Connections refused for their CURVE keys.", labels=["reason"]
        )
        for reason, count in self._counters.keys_refused.items():
            keys.add_metric([reason], count)
        yield keys
        yield CounterMetricFamily(
            "duologue_bus_corrupt_messages", "Unreadable messages of strangers.", value=self._counters.corrupt
        )
