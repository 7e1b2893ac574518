"""What a run of leaks says of the memory of a process."""

from __future__ import annotations

import pytest
from soak.memory import Memory, settled, slope

pytestmark = pytest.mark.unit


def life(start: int, end: int, kb_a_cycle: float, warm_up_kb: float = 0.0, each: int = 250) -> list[tuple[int, float]]:
    """Samples of a process that fills `warm_up_kb` in its first cycles and grows besides."""
    return [(n, 1000.0 + (warm_up_kb if n > start else 0) + n * kb_a_cycle) for n in range(start, end + 1, each)]


def test_the_slope_is_that_of_the_line() -> None:
    assert slope(life(0, 2000, 0.7)) == pytest.approx(0.7)
    assert slope([(5, 1.0), (5, 3.0)]) == 0.0


def test_what_is_filled_once_is_no_growth() -> None:
    memory = Memory()
    memory.samples["shard-1", 7] = life(250, 5000, 0.1, warm_up_kb=9000)
    assert memory.slopes() == {("shard-1", 7): pytest.approx(0.1)}


def test_the_second_half_is_that_of_its_own_life() -> None:
    points = life(2500, 5000, 0.0)
    assert [points[0][0], settled(points)[0][0]] == [2500, 3750]


def test_a_short_life_is_not_judged_before_it_is_warm() -> None:
    points = life(3500, 5000, 0.0)
    assert settled(points)[0][0] == 4500


def test_growth_of_a_restarted_process_is_found_and_so_is_that_of_one_that_died() -> None:
    memory = Memory()
    memory.samples["shard-1", 7] = life(250, 2500, 2.0)
    memory.samples["shard-1", 8] = life(2500, 5000, 0.6)
    assert memory.slopes() == {("shard-1", 7): pytest.approx(2.0), ("shard-1", 8): pytest.approx(0.6)}


def test_who_lives_and_has_no_slope_is_named() -> None:
    memory = Memory()
    memory.samples["gateway-1", 1] = life(250, 5000, 0.0)
    memory.samples["worker", 2] = life(250, 1000, 0.0)
    memory.samples["worker", 3] = life(4500, 5000, 0.0)
    assert memory.unjudged() == [("worker", 3)]
