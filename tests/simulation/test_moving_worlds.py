"""Sessions leave drained workers with what these hold, in many faulty worlds. MOVING_WORLDS sets how many, MOVING_SEED
runs one."""

from __future__ import annotations

import os

import pytest
from simulation.campaign import run_kind
from simulation.moving_world import MovingWorld

pytestmark = pytest.mark.sim

WORLDS = int(os.environ.get("MOVING_WORLDS", "20"))
SEED = os.environ.get("MOVING_SEED")


@pytest.mark.timeout(60 + 6 * WORLDS)
def test_a_context_moves_with_its_session() -> None:
    count = run_kind(MovingWorld, range(WORLDS) if SEED is None else [int(SEED)], whole=SEED is not None)
    print(count)
    if SEED is None:
        for hard in ("fault: worker drained", "states moved", "drained empty"):
            assert count[hard] >= WORLDS // 2, f"the worlds are too kind: {hard} {count[hard]}"
