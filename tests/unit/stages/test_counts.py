"""What a worker counts is what its metrics show, and is told once."""

from __future__ import annotations

import pytest

from duologue.runtime.metric_registry import REGISTRIES
from duologue.stages.counts import StageCounts

pytestmark = pytest.mark.unit


def shown(name: str, **labels: str) -> float | None:
    return REGISTRIES["worker"].get_sample_value(f"duologue_worker_{name}", {"pipeline": "c", "stage": "s", **labels})


def test_steps_are_shown_as_they_were() -> None:
    counts = StageCounts("c", "s")
    counts.step([0.0, 0.02, 100.0], 0.004)
    counts.step([0.0], 0.04)
    for _ in range(2):
        counts.show(3, 8, 100, 50)
    assert shown("units_total") == 4
    assert (shown("batch_units_count"), shown("batch_units_sum")) == (2, 4)
    assert [shown("batch_units_bucket", le=le) for le in ("1.0", "2.0", "4.0")] == [1, 1, 2]
    assert (shown("queue_seconds_count"), shown("compute_seconds_count")) == (4, 2)
    assert shown("queue_seconds_bucket", le="0.0005") == 2 and shown("queue_seconds_bucket", le="2.5") == 3
    assert shown("compute_seconds_sum") == pytest.approx(0.044)
    assert (shown("used_slots"), shown("total_slots")) == (3, 8)
    assert (shown("state_bytes"), shown("kv_tokens")) == (100, 50)


def test_failures_are_shown_by_their_code() -> None:
    counts = StageCounts("c", "s")
    for code in ("stage_timeout", "engine_error", "stage_timeout"):
        counts.fail(code)
    assert shown("failed_units_total", code="stage_timeout") == shown("missed_deadlines_total") == 2
