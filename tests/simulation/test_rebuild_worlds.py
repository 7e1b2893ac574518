"""Contexts survive their workers, in many faulty worlds. REBUILD_WORLDS sets how many, REBUILD_SEED runs one."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from simulation.campaign import HISTORY_LINES
from simulation.rebuild_world import RebuildWorld
from simulation.world import Bad

pytestmark = pytest.mark.sim

WORLDS = int(os.environ.get("REBUILD_WORLDS", "20"))
SEED = os.environ.get("REBUILD_SEED")


@pytest.mark.timeout(60 + 6 * WORLDS)
def test_a_rebuilt_context_is_the_lost_one() -> None:
    count: Counter[str] = Counter()
    for seed in range(WORLDS) if SEED is None else [int(SEED)]:
        world = RebuildWorld(seed)
        try:
            world.run()
        except Bad as bad:
            lines = world.history if SEED is not None else list(world.history)[-HISTORY_LINES:]
            pytest.fail("\n".join([*lines, f"seed {seed}: {bad}"]))
        count += world.count
    print(count)
    if SEED is None:
        for hard in ("fault: worker killed", "fault: worker link broken", "contexts rebuilt", "replayed units"):
            assert count[hard] >= WORLDS // 2, f"the worlds are too kind: {hard} {count[hard]}"
