"""The store's counters are read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duologue.delivery.breaker import StoreBreaker
from duologue.delivery.pump import Pumps
from duologue.runtime.metric_registry import FAST_SECONDS, render
from duologue.runtime.store_metrics import StoreCollector
from duologue.store.stats import BOUNDS_S, StoreStats

pytestmark = pytest.mark.unit


@pytest.fixture
def store() -> Iterator[tuple[StoreStats, Pumps, StoreBreaker]]:
    stats, pumps, breaker = StoreStats(), Pumps(), StoreBreaker()
    collector = StoreCollector(stats, pumps, breaker)
    yield stats, pumps, breaker
    collector.close()


def shown() -> str:
    return render(["store"]).decode()


def test_the_buckets_are_those_of_the_other_fast_things() -> None:
    assert BOUNDS_S == FAST_SECONDS


def test_nothing_has_happened_yet(store: object) -> None:
    assert "duologue_store_journal_appends_total 0.0" in shown()
    assert 'duologue_store_journal_append_seconds_bucket{le="+Inf"} 0.0' in shown()


def test_calls_are_a_histogram_by_script(store: tuple[StoreStats, Pumps, StoreBreaker]) -> None:
    stats = store[0]
    stats.answered("session/own", 0.0007)
    stats.answered("session/own", 99.0)
    stats.journal_times.add(0.002)
    text = shown()
    series = 'duologue_store_call_seconds_bucket{le="%s",script="session/own"} %s'
    for le, count in (("0.0005", "0.0"), ("0.001", "1.0"), ("2.5", "1.0"), ("+Inf", "2.0")):
        assert series % (le, count) in text
    assert 'duologue_store_call_seconds_count{script="session/own"} 2.0' in text
    assert 'duologue_store_call_seconds_sum{script="session/own"} 99.0007' in text
    assert 'duologue_store_journal_append_seconds_bucket{le="0.0025"} 1.0' in text


def test_counts_are_shown_by_what_they_are_of(store: tuple[StoreStats, Pumps, StoreBreaker]) -> None:
    stats, pumps, breaker = store
    stats.failed("session/own", "timeout")
    stats.failed("journal/append", "connection", 3)
    stats.refused("journal/append", "egress")
    stats.journal_bytes, stats.journal_appends, stats.journal_trimmed, stats.journal_full = 1, 2, 3, 4
    pumps.holes = 5
    breaker.fail(0.0)
    text = shown()
    assert 'duologue_store_failures_total{kind="timeout",script="session/own"} 1.0' in text
    assert 'duologue_store_failures_total{kind="connection",script="journal/append"} 3.0' in text
    assert 'duologue_store_refusals_total{number="egress",script="journal/append"} 1.0' in text
    assert "duologue_store_journal_bytes_total 1.0" in text
    assert "duologue_store_journal_appends_total 2.0" in text
    assert "duologue_store_journal_trimmed_events_total 3.0" in text
    assert "duologue_store_journal_full_total 4.0" in text
    assert "duologue_store_journal_holes_total 5.0" in text
    assert "duologue_store_breaker_open_ratio 1.0" in text
    assert "duologue_store_breaker_openings_total 1.0" in text
    assert "duologue_store_journal_backlog_bytes 0.0" in text
