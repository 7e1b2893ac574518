"""Names follow the scheme; a process shows only its own; the bus's counters are read when scraped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric

from duologue.bus.stats import BusStats
from duologue.runtime import metrics
from duologue.runtime.bus_metrics import BusCollector
from duologue.runtime.metric_registry import PROCESSES, REGISTRIES, UNITS, render

pytestmark = pytest.mark.unit

NAME = re.compile(r"^duologue_(?P<process>[a-z]+)_[a-z_]+$")
ROOT = Path(__file__).parents[3]
PRODUCT = ("shared", "services", "models", "client", "cli", "inline")
FORBIDDEN_LABELS = {"session", "session_id", "principal", "user", "text", "token"}


@pytest.fixture
def bus() -> Iterator[BusStats]:
    stats = BusStats()
    collector = BusCollector(stats)
    yield stats
    collector.close()


def families() -> list[tuple[str, Metric]]:
    return [(process, family) for process in PROCESSES for family in REGISTRIES[process].collect()]


def test_every_name_follows_the_scheme(bus: BusStats) -> None:
    assert len(families()) > 60
    for process, family in families():
        found = NAME.match(family.name)
        assert found is not None and found["process"] == process, family.name
        assert family.documentation.endswith("."), family.name
        if family.type != "counter":
            assert family.name.rsplit("_", 1)[1] in UNITS, family.name


def test_counters_end_in_total(bus: BusStats) -> None:
    for process in PROCESSES:
        for line in render([process]).decode().splitlines():
            if line.startswith("# TYPE") and line.endswith(" counter"):
                assert line.split()[2].endswith("_total"), line


def test_no_label_has_a_value_for_each_session() -> None:
    declared = [value for value in vars(metrics).values() if isinstance(value, Counter | Gauge | Histogram)]
    assert len(declared) > 50
    for metric in declared:
        assert not FORBIDDEN_LABELS & set(metric._labelnames), metric._name


def test_every_declared_metric_is_moved_by_the_product() -> None:
    """A metric that nothing moves is a lie. One that is read by a function is moved where it is declared."""
    declaring = Path(metrics.__file__)
    code = "\n".join(path.read_text() for room in PRODUCT for path in (ROOT / room).rglob("*.py") if path != declaring)
    used = set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", code))
    read_by_function = set(re.findall(r"^(\w+)\.set_function\(", declaring.read_text(), re.MULTILINE))
    declared = {name for name, value in vars(metrics).items() if isinstance(value, Counter | Gauge | Histogram)}
    assert declared - used - read_by_function == set()


@pytest.mark.parametrize(
    ("collector", "services"),
    [("BusCollector(", ["gateway", "session", "stages"]), ("StoreCollector(", ["gateway", "session"])],
)
def test_the_collectors_are_wired_where_there_is_something_to_collect(collector: str, services: list[str]) -> None:
    for service in services:
        main = ROOT / "services" / service / "duologue" / service / "__main__.py"
        assert collector in main.read_text(), service


def test_a_process_shows_only_its_own() -> None:
    text = render(["gateway", "process"]).decode()
    assert "duologue_gateway_frames_received_total" in text
    assert "duologue_process_resident_bytes" in text
    assert "duologue_session_" not in text and "duologue_worker_" not in text
    assert "_created" not in text


def test_memory_and_cpu_are_read_when_scraped() -> None:
    values = {
        line.split()[0]: float(line.split()[1])
        for line in render(["process"]).decode().splitlines()
        if not line.startswith("#") and "{" not in line
    }
    assert values["duologue_process_resident_bytes"] > 1_000_000
    assert values["duologue_process_cpu_seconds"] > 0


def test_the_counters_of_the_bus_are_read_at_each_scrape(bus: BusStats) -> None:
    stats = bus.of("shard-1")
    stats.sent_bytes = 4
    stats.credit_exhausted_seconds = 1.5
    stats.lost["gap"] = 2
    bus.hellos_refused["version"] = 1
    bus.live = 3
    text = render(["bus"]).decode()
    assert 'duologue_bus_sent_bytes_total{peer="shard-1"} 4.0' in text
    assert 'duologue_bus_credit_exhausted_seconds_total{peer="shard-1"} 1.5' in text
    assert 'duologue_bus_peers_lost_total{peer="shard-1",reason="gap"} 2.0' in text
    assert 'duologue_bus_hellos_refused_total{reason="version"} 1.0' in text
    assert "duologue_bus_live_links 3.0" in text
    stats.sent_bytes = 5
    assert 'duologue_bus_sent_bytes_total{peer="shard-1"} 5.0' in render(["bus"]).decode()
