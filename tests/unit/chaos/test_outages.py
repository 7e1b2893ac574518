"""How long an outage was, and what of it the machine is to blame for."""

from __future__ import annotations

import pytest
from chaos.outages import Happened, outages, table
from chaos.witness import Stalls

pytestmark = pytest.mark.unit

STEADY = [n * 0.08 for n in range(500)]


def heard(begin: float, end: float) -> list[float]:
    """Something every 80 ms, and nothing from `begin` to `end`."""
    return [at for at in STEADY if not begin < at < end]


def test_the_longest_silence_of_any_session_is_the_outage() -> None:
    fault = Happened("kill gateway", "gateway-1", 10.0, 10.0, 11.5)
    (outage,) = outages([STEADY, heard(10.0, 10.8), heard(10.0, 10.3)], [fault], [])
    assert outage.longest_s == pytest.approx(0.8)
    assert outage.within and "LONGER" not in table([outage])


def test_what_the_machine_stood_still_is_taken_off() -> None:
    fault = Happened("kill shard", "shard-1", 10.0, 10.0, 11.5)
    stalls = Stalls([(10.9, 0.7), (30.0, 5.0)])
    (outage,) = outages([heard(10.0, 11.6)], [fault], [stalls])
    assert outage.stall_s == pytest.approx(0.7) and outage.net_s == pytest.approx(0.9) and outage.within
    (alone,) = outages([heard(10.0, 11.6)], [fault], [])
    assert alone.net_s == pytest.approx(1.6) and not alone.within and "LONGER" in table([alone])


def test_a_pause_of_the_gateway_itself_is_no_outage_but_what_follows_is() -> None:
    fault = Happened("pause gateway", "gateway-1 5 s", 10.0, 15.0, 15.5)
    (outage,) = outages([heard(10.0, 15.6)], [fault], [])
    assert outage.excused_s == pytest.approx(5.0) and outage.net_s == pytest.approx(0.6)


def test_a_silence_belongs_to_one_fault() -> None:
    first = Happened("reset sockets", "", 10.0, 10.0, 10.0)
    second = Happened("kill worker", "worker-1", 20.0, 20.0, 21.0)
    found = {outage.kind: outage for outage in outages([heard(20.0, 21.0)], [first, second], [])}
    assert found["kill worker"].longest_s == pytest.approx(1.04)
    assert found["reset sockets"].longest_s == pytest.approx(0.08)


def test_faults_of_a_kind_are_counted_and_the_worst_is_told() -> None:
    faults = [Happened("kill worker", "worker-1", at, at, at + 1) for at in (10.0, 20.0)]
    (outage,) = outages([heard(20.0, 20.6)], faults, [])
    assert (outage.times, round(outage.longest_s, 2)) == (2, 0.64)


def test_a_stall_counts_as_far_as_it_lies_within() -> None:
    stalls = Stalls([(11.0, 0.5), (12.0, 0.2)])
    assert stalls.within(10.0, 13.0) == pytest.approx(0.7)
    assert stalls.within(11.5, 11.9) == pytest.approx(0.1)
    assert stalls.within(10.6, 10.8) == pytest.approx(0.2)
    assert stalls.within(14.0, 15.0) == 0.0
    assert stalls.longest_s == 0.5
