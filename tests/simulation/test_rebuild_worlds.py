"""Contexts survive their workers, in many faulty worlds. REBUILD_WORLDS sets how many, REBUILD_SEED runs one."""

from __future__ import annotations

import os

import pytest
from simulation.campaign import run_kind
from simulation.rebuild_world import RebuildWorld

pytestmark = pytest.mark.sim

WORLDS = int(os.environ.get("REBUILD_WORLDS", "20"))
SEED = os.environ.get("REBUILD_SEED")


@pytest.mark.timeout(60 + 6 * WORLDS)
def test_a_rebuilt_context_is_the_lost_one() -> None:
    count = run_kind(RebuildWorld, range(WORLDS) if SEED is None else [int(SEED)], whole=SEED is not None)
    print(count)
    if SEED is None:
        for hard in ("fault: worker killed", "fault: worker link broken", "contexts rebuilt", "replayed units"):
            assert count[hard] >= WORLDS // 2, f"the worlds are too kind: {hard} {count[hard]}"
