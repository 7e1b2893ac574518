"""Shards die while their checkpoints are late, in many worlds. LATE_WORLDS sets how many, LATE_SEED runs one."""

from __future__ import annotations

import os

import pytest
from simulation.campaign import run_kind
from simulation.late_checkpoint_world import LateCheckpointWorld

pytestmark = pytest.mark.sim

WORLDS = int(os.environ.get("LATE_WORLDS", "30"))
SEED = os.environ.get("LATE_SEED")


@pytest.mark.timeout(60 + 6 * WORLDS)
def test_nothing_is_told_twice_by_the_heir_of_a_shard_whose_checkpoint_was_late() -> None:
    count = run_kind(LateCheckpointWorld, range(WORLDS) if SEED is None else [int(SEED)], whole=SEED is not None)
    print(count)
    if SEED is None:
        for hard in ("fault: checkpoints late", "adoptions", "told beyond the checkpoint"):
            assert count[hard] >= WORLDS // 2, f"the worlds are too kind: {hard} {count[hard]}"
