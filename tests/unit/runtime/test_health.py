"""Readiness is the sum of its conditions."""

from __future__ import annotations

import pytest

from duologue.runtime.health import Readiness

pytestmark = pytest.mark.unit


def test_all_conditions_must_hold() -> None:
    readiness = Readiness("store", "workers")
    assert readiness.verdict() == (False, {"store": "not yet", "workers": "not yet"})
    readiness.meet("store")
    readiness.fail("workers", "cascade has none")
    assert readiness.verdict() == (False, {"workers": "cascade has none"})
    readiness.meet("workers")
    readiness.meet("workers")
    assert readiness.verdict() == (True, {})


def test_a_probe_is_asked_each_time() -> None:
    readiness = Readiness()
    said = ["too slow"]
    readiness.add_probe("loop", lambda: said[0])
    assert readiness.verdict() == (False, {"loop": "too slow"})
    said[0] = ""
    assert readiness.verdict().ready


def test_draining_overrules() -> None:
    readiness = Readiness()
    assert not readiness.draining
    readiness.drain()
    assert readiness.draining
    assert readiness.verdict() == (False, {"draining": "no new sessions"})


def test_an_undeclared_condition_is_our_bug() -> None:
    with pytest.raises(KeyError, match="workers"):
        Readiness("store").meet("workers")
    with pytest.raises(KeyError, match="workers"):
        Readiness("store").fail("workers", "x")
