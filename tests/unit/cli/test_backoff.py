"""The pause before a crashed process is started again."""

from __future__ import annotations

import pytest

from duologue.cli.supervisor.backoff import Backoff

pytestmark = pytest.mark.unit


def test_it_doubles_to_its_bound() -> None:
    backoff = Backoff(first_s=0.2, most_s=1.0)
    assert [backoff.after(0.1) for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.crashes == 5


def test_a_healthy_life_forgives() -> None:
    backoff = Backoff(first_s=0.2, healthy_s=30.0)
    backoff.after(0.1)
    backoff.after(0.1)
    assert backoff.after(31.0) == 0.2
    assert backoff.crashes == 1
