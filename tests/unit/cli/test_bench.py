"""What the bench makes of its windows."""

from __future__ import annotations

import pytest

from duologue.cli.bench.command import Figures, ratios_of
from duologue.cli.bench.load import Result

pytestmark = pytest.mark.unit


def window(name: str, **cpu_s: float) -> Figures:
    return Figures(name, Result(sessions=2, steady_s=4.0, units_sent=100, units_answered=99), cpu_s)


def test_each_round_has_its_ratio() -> None:
    rounds = [[window("duologue", shard=a, store=1.0), window("floor", floor=2.0)] for a in (3.0, 7.0)]
    assert ratios_of(rounds) == [2.0, 4.0]


def test_there_is_no_ratio_to_what_was_not_counted() -> None:
    product, floor = window("duologue", shard=3.0), window("floor", floor=1.0)
    assert ratios_of([[product]]) == []
    assert ratios_of([[product, window("floor", floor=0.0)]]) == []
    assert ratios_of([[window("duologue"), floor]]) == [], "a system elsewhere"


def test_windows_add_up() -> None:
    one = window("duologue", shard=3.0, store=1.0)
    one.add(window("duologue", shard=5.0, store=1.0))
    assert (one.total_cpu_s, one.result.sessions, one.result.steady_s) == (10.0, 2, 8.0)
    assert (one.result.units_sent, one.result.units_answered) == (200, 198)
    assert one.per_session_ms(one.total_cpu_s) == 625.0
