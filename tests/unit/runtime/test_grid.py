"""The grid that timers share."""

from __future__ import annotations

import pytest

from duologue.runtime.grid import next_on_grid

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("now", "period", "due"),
    [
        (8.0, 0.5, 8.5),
        (8.2, 0.5, 8.5),
        (8.249, 0.5, 8.5),
        (8.3, 0.5, 9.0),
        (7.9995, 0.5, 8.5),
        (8.0, 0.25, 8.25),
        (8.2, 0.0, 8.2),
    ],
)
def test_the_next_multiple_that_is_not_too_near(now: float, period: float, due: float) -> None:
    assert next_on_grid(now, period) == due


def test_who_rings_early_or_late_comes_once_a_period() -> None:
    now, rings = 100.07, []
    for late in (0.0, -0.0005, 0.02, 0.1, -0.0005, 0.0):
        now = next_on_grid(now, 0.25) + late
        rings.append(now - late)
    assert [round(b - a, 6) for a, b in zip(rings, rings[1:], strict=False)] == [0.25] * 5
