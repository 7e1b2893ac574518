"""A crowd of clients: so many are let in each second, and the others do not come back as one."""

from __future__ import annotations

import random

import pytest

from duologue.gateway.connect_rate import BURST_S, LEAST_MS, MOST_MS, ConnectRate

pytestmark = pytest.mark.unit

PER_S = 50


def test_a_small_crowd_is_let_in_at_once_and_a_large_one_by_the_rate() -> None:
    rate = ConnectRate(PER_S)
    assert [rate.take(0.0) for _ in range(int(PER_S * BURST_S))] == [0] * 100
    assert rate.take(0.0) >= LEAST_MS
    assert sum(not rate.take(1.0) for _ in range(200)) == PER_S
    assert [rate.take(100.0) for _ in range(100)] == [0] * 100, "a while later it is as at first"


def test_the_hints_are_spread_over_the_time_that_the_crowd_takes() -> None:
    rate = ConnectRate(PER_S, random.Random(7).uniform)
    hints = [hint for _ in range(1000) if (hint := rate.take(0.0))]
    assert min(hints) >= LEAST_MS
    assert max(hints) > 15_000, "900 are refused, which is 18 s of the rate"
    assert max(hints) <= MOST_MS
    assert len(set(hints)) > 500
    tenths = [sum(low <= hint < low + 2000 for hint in hints) for low in range(0, 18_000, 2000)]
    assert max(tenths) < len(hints) / 2, "no two seconds get half of them"


def test_a_storm_in_which_all_do_as_told_is_over_in_bounded_time() -> None:
    """1,000 clients of a gateway that died: each tries again at the time that it was told."""
    rate = ConnectRate(PER_S, random.Random(1).uniform)
    due = [(0.0, n) for n in range(1000)]
    tries, within_a_second, inside, at = 0, [0] * 200, 0, 0.0
    while due:
        due.sort()
        at, client = due.pop(0)
        tries += 1
        if hint := rate.take(at):
            due.append((at + hint / 1000, client))
        else:
            inside += 1
            within_a_second[int(at)] += 1
    assert inside == 1000
    assert max(within_a_second) <= PER_S * (1 + BURST_S)
    assert at < 120 and tries < 10_000
