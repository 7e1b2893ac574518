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
