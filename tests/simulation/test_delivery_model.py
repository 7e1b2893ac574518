"""The delivery rules hold in every faulty world, and each rule is needed: switched off, a check fails."""

from __future__ import annotations

import pytest
from simulation.delivery_model import MUTANTS
from simulation.delivery_model_world import FAULTS, PAIRS, campaign

pytestmark = pytest.mark.sim

ALONE = [(), ("regress",), ("regress", "lost", "late"), *((fault,) for fault in FAULTS), FAULTS]
CAUGHT_UNDER = {"reported": ("regress", "gateway_kill")}
"""Where a mutant shows; everywhere else it is under all faults at once."""


@pytest.mark.parametrize("faults", ALONE, ids=lambda f: "+".join(f) or "none")
def test_rules_hold(faults: tuple[str, ...]) -> None:
    found, count = campaign(faults, range(40))
    print(f"{'+'.join(faults) or 'no fault'}: {dict(count)}")
    assert not found


@pytest.mark.parametrize("faults", PAIRS, ids="+".join)
def test_rules_hold_under_pairs(faults: tuple[str, str]) -> None:
    found, count = campaign(faults, range(20))
    assert not found
    assert all(count[fault] for fault in faults), "the faults of this world did not happen"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_rule_is_needed(mutant: str) -> None:
    for start in range(0, 500, 20):
        found, _ = campaign(CAUGHT_UNDER.get(mutant, FAULTS), range(start, start + 20), mutant)
        if found:
            seed, what = next(iter(found.items()))
            print(f"{mutant} ({MUTANTS[mutant]}): seed {seed}: {what}")
            return
    pytest.fail(f"nobody notices that {MUTANTS[mutant]}")
