"""How metrics are declared: the naming scheme, one registry for each kind of process, buckets by unit.

Rule 1. A name is `duologue_<process>_<thing>_<unit>[_total]`; the process is a key of `REGISTRIES`.
Rule 2. A process shows only what its kinds declare: a gateway has no `duologue_worker_...` at zero, which an
        autoscaler would add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST

PROCESSES: Final = ("gateway", "session", "worker", "bus", "store", "process")
UNITS: Final = ("seconds", "bytes", "events", "sessions", "units", "messages", "slots", "links", "ratio", "tokens")
"""Of gauges and histograms. A counter counts a thing by its name, and ends in `_total`."""

REGISTRIES: Final = {process: CollectorRegistry(auto_describe=False) for process in PROCESSES}

FAST_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Loops, store round trips, compute steps."""
SPOKEN_SECONDS: Final = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""What a person waits for."""
SIZE_BYTES: Final = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)

# The time a series was made is of no use here, and doubles what is scraped.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


def counter(process: str, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
    return Counter(f"duologue_{process}_{name}_total", help_text, labels, registry=REGISTRIES[process])


def gauge(process: str, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    return Gauge(f"duologue_{process}_{name}", help_text, labels, registry=REGISTRIES[process])


def histogram(
    process: str, name: str, help_text: str, buckets: Sequence[float], labels: Sequence[str] = ()
) -> Histogram:
    return Histogram(f"duologue_{process}_{name}", help_text, labels, buckets=buckets, registry=REGISTRIES[process])


def render(processes: Iterable[str]) -> bytes:
    """The text exposition of these kinds of process, e.g. `("gateway", "bus", "store", "process")`."""
    return b"".join(generate_latest(REGISTRIES[process]) for process in processes)
