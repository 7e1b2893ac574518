"""Sessions survive their shards, in many faulty worlds. ADOPTION_WORLDS sets how many, ADOPTION_SEED runs one."""

from __future__ import annotations

import os

import pytest
from simulation.adoption_world import AdoptionWorld
from simulation.campaign import run_kind

pytestmark = pytest.mark.sim

WORLDS = int(os.environ.get("ADOPTION_WORLDS", "30"))
SEED = os.environ.get("ADOPTION_SEED")


@pytest.mark.timeout(60 + 6 * WORLDS)
def test_a_session_outlives_its_shard() -> None:
    count = run_kind(AdoptionWorld, range(WORLDS) if SEED is None else [int(SEED)], whole=SEED is not None)
    print(count)
    if SEED is None:
        for hard in ("fault: shard killed", "fault: shard stopped", "adoptions"):
            assert count[hard] >= WORLDS // 2, f"the worlds are too kind: {hard} {count[hard]}"
