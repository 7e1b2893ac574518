"""The store breaker."""

from __future__ import annotations

import pytest

from duologue.delivery.breaker import StoreBreaker

pytestmark = pytest.mark.unit


def test_closed_lets_everybody_through() -> None:
    breaker = StoreBreaker()
    assert not breaker.open and all(breaker.may_try(0.0) for _ in range(3))


def test_open_lets_one_through_each_interval() -> None:
    breaker = StoreBreaker(probe_s=0.25)
    breaker.fail(1.0)
    assert breaker.open
    assert not breaker.may_try(1.2)
    assert breaker.may_try(1.25)
    assert not breaker.may_try(1.4)
    assert breaker.may_try(1.5)


def test_failing_again_while_open_does_not_put_the_probe_off() -> None:
    breaker = StoreBreaker(probe_s=0.1)
    breaker.fail(1.0)
    breaker.fail(1.09)
    assert breaker.openings == 1 and breaker.may_try(1.1)


def test_any_answer_closes_it() -> None:
    breaker = StoreBreaker()
    breaker.fail(1.0)
    breaker.answered()
    assert not breaker.open and breaker.may_try(1.0)
    breaker.fail(2.0)
    assert breaker.openings == 2


def test_it_says_once_that_it_opens() -> None:
    breaker, said = StoreBreaker(), []
    breaker.on_open = lambda: said.append("open")
    for now in (1.0, 1.1):
        breaker.fail(now)
    assert said == ["open"]
    breaker.answered()
    breaker.fail(2.0)
    assert said == ["open", "open"]


def test_who_waits_for_too_long_opens_it() -> None:
    breaker = StoreBreaker(deadline_s=0.25)
    breaker.judge(1.0, 1.2)
    assert not breaker.open
    breaker.judge(1.0, 1.25)
    assert breaker.open


def test_who_stood_still_reads_before_it_judges() -> None:
    breaker = StoreBreaker(deadline_s=0.25)
    breaker.looked(due=1.05, now=1.5)
    breaker.judge(1.0, 1.5)
    breaker.judge(1.0, 1.52)
    assert not breaker.open, "what came meanwhile has not been read"
    breaker.looked(due=1.55, now=1.56)
    breaker.judge(1.0, 1.56)
    assert breaker.open, "nothing had come"
