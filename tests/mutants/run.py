"""Broken products that the tests must catch: `python tests/mutants/run.py [NAME ...]`.

Each patch beside this file plants one bug in a copy of the product and says which invariant of
`docs/architecture.md` that breaks. Then the simulation runs on it, seed after seed, until a world fails. A mutant
that survives its seeds is a hole in the checks: exit code 1. So is a patch that does not apply any more, a seed
that fails without the bug too, and an invariant without a mutant. Where the simulation is not the test that guards
a rule, the patch names its own (`Suite:`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROOTS = ("shared", "models", "services/gateway", "services/session", "services/stages")
INVARIANTS = 12


@dataclass(frozen=True)
class Mutant:
    """One patch, and the lines before it."""

    patch: Path
    invariant: int
    breaks: str
    seeds: int
    """Within so many worlds it is caught; 0: by `suite`."""
    suite: str
    """Arguments of pytest."""


@dataclass
class Verdict:
    """What became of one mutant. `how` is empty if nobody noticed it."""

    mutant: Mutant
    how: str = ""
    fault: str = ""
    """Why it could not be tried, or proves nothing."""
    took_s: float = 0.0


def read(patch: Path) -> Mutant:
    """The lines `Name: value` before the patch itself."""
    said = dict(line.split(": ", 1) for line in patch.read_text().partition("---")[0].splitlines() if line)
    return Mutant(patch, int(said["Invariant"]), said["Breaks"], int(said.get("Seeds", 0)), said.get("Suite", ""))


def copy_product(to: Path) -> None:
    """The import roots of the product, without what tests and tools leave there."""
    for root in ROOTS:
        shutil.copytree(ROOT / root / "duologue", to / root / "duologue", ignore=shutil.ignore_patterns("__pycache__"))


def environment(product: Path) -> dict[str, str]:
    """One in which the product is found in the copy, before it is found anywhere else."""
    path = [*(str(product / root) for root in ROOTS), str(ROOT / "tests")]
    told = {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1", "NO_SHRINK": "1"}
    return {**os.environ, **told}  # that a bug is seen is enough: no time for its shortest story


def try_mutant(mutant: Mutant) -> Verdict:
    verdict = Verdict(mutant)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="duologue-mutant-") as folder:
        product = Path(folder)
        copy_product(product)
        apply = ["git", "apply", "-C1", "--recount", str(mutant.patch)]
        applied = subprocess.run(apply, cwd=product, capture_output=True, text=True)
        if applied.returncode:
            verdict.fault = f"the patch does not apply: {applied.stderr.strip()}"
        elif mutant.suite:
            _by_suite(verdict, product)
        else:
            _by_simulation(verdict, product)
    verdict.took_s = time.monotonic() - began
    return verdict


def _by_suite(verdict: Verdict, product: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *shlex.split(verdict.mutant.suite)]
    ran = subprocess.run(command, cwd=ROOT, env=environment(product), capture_output=True, text=True)
    failed = [line for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    if ran.returncode == 1 and failed:
        verdict.how = failed[0].removeprefix("FAILED ").partition(" - ")[0]
    elif ran.returncode:
        verdict.fault = f"the suite did not run: {(ran.stdout + ran.stderr)[-300:]}"


def _by_simulation(verdict: Verdict, product: Path) -> None:
    seed, what = hunt(product, 0, verdict.mutant.seeds)
    if seed < 0:
        verdict.fault = what
        return
    clean, _ = hunt(ROOT, seed, seed + 1)
    if clean >= 0:
        verdict.fault = f"seed {seed} fails without the bug too"
    else:
        verdict.how = f"after {seed + 1} seeds of {verdict.mutant.seeds}: {what}"


def hunt(product: Path, first: int, last: int) -> tuple[int, str]:
    """The first seed of [first, last) whose world fails, and why; -1 if there is none, with a reason if it is one."""
    command = [sys.executable, str(HERE / "hunt.py"), str(first), str(last)]
    ran = subprocess.run(command, env=environment(product), capture_output=True, text=True)
    told = ran.stdout.strip().splitlines()
    if told and told[-1].startswith("clean"):
        return -1, ""
    seed, _, what = (told[-1] if told else "").partition(": " if ran.returncode == 0 else " ")
    if not seed.isdecimal():
        return -1, f"the simulation did not run: {(ran.stdout + ran.stderr)[-300:]}"
    return int(seed), what if ran.returncode == 0 else "a world never ends"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to try (all)")
    options = parser.parse_args()
    every = [read(patch) for patch in sorted(HERE.glob("*.patch"))]
    chosen = [mutant for mutant in every if not options.names or mutant.patch.stem in options.names]
    if not chosen or len(chosen) < len(options.names):
        print(f"there is no such mutant among {', '.join(mutant.patch.stem for mutant in every)}")
        return 2
    caught = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for verdict in pool.map(try_mutant, sorted(chosen, key=lambda mutant: mutant.invariant)):
            caught += bool(verdict.how)
            print(line(verdict), flush=True)
    print(f"{caught} of {len(chosen)} mutants are caught")
    unguarded = set(range(1, INVARIANTS + 1)) - {mutant.invariant for mutant in every}
    if unguarded:
        print(f"invariants without a mutant: {sorted(unguarded)}")
    return 1 if unguarded or caught < len(chosen) else 0


def line(verdict: Verdict) -> str:
    """What is printed of one mutant."""
    mutant = verdict.mutant
    outcome = verdict.how or verdict.fault or f"SURVIVED {mutant.suite or f'{mutant.seeds} worlds'}"
    name = f"invariant {mutant.invariant:2}  {mutant.patch.stem}: {mutant.breaks}"
    return f"{'caught' if verdict.how else 'FAILED'}  {name} ({verdict.took_s:.0f} s)\n        {outcome}"


if __name__ == "__main__":
    sys.exit(main())
