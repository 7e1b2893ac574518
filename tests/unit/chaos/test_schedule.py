"""The faults of a seed."""

from __future__ import annotations

from itertools import islice

import pytest
from chaos.schedule import CUTS, DOUBLE_S, KINDS, PAUSE_S, PAUSES, QUIET_S, schedule

pytestmark = pytest.mark.unit


def test_a_seed_is_a_schedule() -> None:
    first, again, other = (list(islice(schedule(seed), 40)) for seed in (1, 1, 2))
    assert first == again != other


def test_single_faults_are_apart_and_every_kind_comes() -> None:
    faults = [one for (one,) in islice(schedule(7), 2 * len(KINDS))]
    assert {fault.kind for fault in faults[: len(KINDS)]} == set(KINDS)
    assert all(fault.after_s >= QUIET_S for fault in faults)
    for fault in faults:
        if fault.kind in PAUSES:
            assert PAUSE_S[0] <= fault.seconds <= PAUSE_S[1]
        elif fault.kind not in CUTS:
            assert fault.seconds == 0.0


def test_double_faults_come_in_pairs() -> None:
    for first, second in islice(schedule(3, double=True), 20):
        assert first.after_s >= QUIET_S and second.after_s <= DOUBLE_S


def test_a_choice_of_kinds() -> None:
    assert {one.kind for (one,) in islice(schedule(1, kinds=["kill shard"]), 5)} == {"kill shard"}


def test_a_target_is_always_one_of_those_there_are() -> None:
    names = ["a", "b", "c"]
    targets = {one.of(names) for (one,) in islice(schedule(5), 200)}
    assert targets == set(names)
