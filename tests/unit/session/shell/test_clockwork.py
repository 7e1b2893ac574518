"""Deadlines of many sessions on one timer: never early, with other work, and at most the slack late."""

from __future__ import annotations

import asyncio

import pytest

from duologue.session.clockwork import Clockwork

pytestmark = pytest.mark.unit


async def test_nothing_runs_before_its_time_and_all_in_the_order_of_their_times() -> None:
    clockwork = Clockwork(3600.0)
    ran: list[str] = []
    for name, when in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("b2", 2.0)):
        clockwork.at(when, lambda name=name: ran.append(name))  # type: ignore[misc]
    assert clockwork.next == 1.0
    clockwork.run_due(0.9)
    assert ran == []
    clockwork.run_due(2.0)
    assert ran == ["a", "b", "b2"]
    assert clockwork.next == 3.0


async def test_a_cancelled_alarm_does_not_run() -> None:
    clockwork = Clockwork(3600.0)
    ran: list[str] = []
    alarm = clockwork.at(1.0, lambda: ran.append("cancelled"))
    clockwork.at(1.0, lambda: ran.append("other"))
    alarm.cancel()
    clockwork.run_due(1.0)
    assert ran == ["other"]


async def test_what_an_alarm_sets_anew_waits_for_the_next_time() -> None:
    clockwork = Clockwork(3600.0)
    ran: list[str] = []

    def again() -> None:
        ran.append("again")
        clockwork.at(0.0, again)
        clockwork.run_due(9.0)  # does not nest

    clockwork.at(1.0, again)
    clockwork.run_due(1.0)
    assert ran == ["again"]
    clockwork.run_due(1.0)
    assert ran == ["again", "again"]


async def test_an_alarm_that_raises_keeps_neither_the_others_nor_the_timer_back() -> None:
    clockwork = Clockwork(0.0)
    rang = asyncio.Event()

    def fail() -> None:
        raise RuntimeError("planned")

    clockwork.at(0.0, fail)
    clockwork.at(0.1, rang.set)
    with pytest.raises(RuntimeError, match="planned"):
        clockwork.run_due(0.5)
    await asyncio.wait_for(rang.wait(), 10)


async def test_the_timer_rings_where_nobody_else_does() -> None:
    clockwork, rang = Clockwork(0.0), asyncio.Event()
    later = clockwork.at(asyncio.get_running_loop().time() + 3600.0, rang.set)
    clockwork.at(asyncio.get_running_loop().time(), rang.set)
    await asyncio.wait_for(rang.wait(), 10)
    assert clockwork.next == later.when
