"""The whole system in many faulty worlds. WORLDS sets how many (200), SEED runs one and tells its whole history."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from simulation.campaign import HARD, report, run_parallel, run_seeds
from simulation.world import COMMANDS, Bad, World

pytestmark = pytest.mark.sim

WORLDS = int(os.environ.get("WORLDS", "200"))
SEED = os.environ.get("SEED")
_TESTS = Path(__file__).parents[1]


def digest(seed: int) -> str:
    """Of everything that was noted in a world, times included, and of all that clients got."""
    world = World(seed)
    world.run()
    return hashlib.sha256("\n".join([*world.history, str(world.written)]).encode()).hexdigest()


@pytest.mark.skipif(SEED is not None, reason="SEED names one world")
@pytest.mark.timeout(60 + 6 * WORLDS)
def test_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    found = run_parallel(range(WORLDS))
    with capsys.disabled():
        print("\n" + report(found, time.perf_counter() - began))
    assert not found.bad, f"{len(found.bad)} bad worlds: {sorted(found.bad)}\n" + next(iter(found.bad.values()))
    assert found.count["commands"] >= COMMANDS * WORLDS
    rare = {name: found.count[name] for name in HARD if found.count[name] < WORLDS // 10}
    assert not rare, f"the worlds are too kind: {rare}"


@pytest.mark.skipif(SEED is None, reason="SEED is not set")
def test_one_world() -> None:
    world = World(int(SEED or 0))
    try:
        world.run()
    finally:
        print("\n".join(world.history))


def test_one_seed_is_one_history() -> None:
    first = digest(7)
    with_others_before = run_seeds([3, 11])
    assert not with_others_before.bad
    assert digest(7) == first
    code = "from simulation.test_whole_system import digest; print(digest(7))"
    for hash_seed in ("1", "2"):
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(_TESTS)])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
        told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert told.stdout.strip() == first


def test_a_world_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from duologue.delivery.egress import Egress

    monkeypatch.setattr(Egress, "take_ack", lambda self: None)
    with pytest.raises(Bad):
        World(1).run()
