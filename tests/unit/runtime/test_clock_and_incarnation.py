"""Time as a port, and the id of one life of a process."""

from __future__ import annotations

import os
import re

import pytest

from duologue.runtime.clock import Clock, ManualClock, SystemClock
from duologue.runtime.incarnation import new_incarnation, process_incarnation

pytestmark = pytest.mark.unit


def test_a_manual_clock_moves_when_told() -> None:
    clock = ManualClock(5.0, 1000.0)
    clock.advance(2.5)
    assert (clock.monotonic(), clock.wall()) == (7.5, 1002.5)
    clock.set_wall(10.0)
    assert (clock.monotonic(), clock.wall()) == (7.5, 10.0)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_the_system_clock_never_goes_back() -> None:
    clock: Clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)
    assert clock.wall() > 1_600_000_000


def test_an_incarnation_is_random_and_a_processs_own_stays() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", new_incarnation())
    assert new_incarnation() != new_incarnation()
    assert process_incarnation() == process_incarnation()


def test_a_forked_child_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = process_incarnation()
    real = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: real + 1)
    assert process_incarnation() != mine
