"""Simulated compute: which units cost it, and how long it holds a stage."""

from __future__ import annotations

import time

import pytest
from unit.models.loopback.chain import follow

pytestmark = pytest.mark.unit


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the stages would have slept, in seconds."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def test_each_stage_takes_its_time_for_a_unit(paused: list[float]) -> None:
    follow({"speak": {"units": 5}}, loopback={"stage_ms": [20, 30]}).run(2)
    assert paused == pytest.approx([0.02, 0.03] * 2)


def test_jitter_alone_is_compute_too(paused: list[float]) -> None:
    follow({"speak": {"units": 5}}, loopback={"stage_ms": [0, 0], "jitter_ms": 10}).run(1)
    assert len(paused) == 2 and all(0 < pause <= 0.01 for pause in paused)


def test_without_compute_nothing_is_held(paused: list[float]) -> None:
    follow({"speak": {"units": 5}}).run(2)
    assert paused == []
