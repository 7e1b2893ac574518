"""Broken products that the tests must catch: `python tests/mutants/run.py [NAME ...]`.

Each patch beside this file plants one bug in a copy of the product; then the simulation runs on it, seed after
seed, until a world fails. A mutant that survives its seeds is a hole in the checks: exit code 1. So is a patch
that does not apply any more, and a seed that fails without the bug too. Where the simulation is not the test
that guards a rule, the mutant names its own (`SUITES`).
"""

from __future__ import annotations

import argparse
import os
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
SEEDS = 500
"""Within so many worlds each mutant is caught."""
SUITES = {"no-credit": ["tests/contract/bus/test_link_contract.py", "-k", "memory and many_windows"]}
"""Mutants that a contract suite catches, and the arguments of pytest."""


@dataclass
class Verdict:
    """What became of one mutant. `how` is empty if nobody noticed it."""

    name: str
    how: str = ""
    fault: str = ""
    """Why it could not be tried, or proves nothing."""
    took_s: float = 0.0


def copy_product(to: Path) -> None:
    """The import roots of the product, without what tests and tools leave there."""
    for root in ROOTS:
        shutil.copytree(ROOT / root / "duologue", to / root / "duologue", ignore=shutil.ignore_patterns("__pycache__"))


def environment(product: Path) -> dict[str, str]:
    """One in which the product is found in the copy, before it is found anywhere else."""
    path = [*(str(product / root) for root in ROOTS), str(ROOT / "tests")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}


def try_mutant(patch: Path, seeds: int) -> Verdict:
    verdict = Verdict(patch.stem)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="duologue-mutant-") as folder:
        product = Path(folder)
        copy_product(product)
        applied = subprocess.run(["git", "apply", str(patch)], cwd=product, capture_output=True, text=True)
        if applied.returncode:
            verdict.fault = f"the patch does not apply: {applied.stderr.strip()}"
        elif patch.stem in SUITES:
            _by_suite(verdict, product)
        else:
            _by_simulation(verdict, product, seeds)
    verdict.took_s = time.monotonic() - began
    return verdict


def _by_suite(verdict: Verdict, product: Path) -> None:
    arguments = SUITES[verdict.name]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=environment(product), capture_output=True, text=True)
    failed = [line for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    if ran.returncode == 1 and failed:
        verdict.how = failed[0].removeprefix("FAILED ").partition(" - ")[0]
    elif ran.returncode:
        verdict.fault = f"the suite did not run: {(ran.stdout + ran.stderr)[-300:]}"


def _by_simulation(verdict: Verdict, product: Path, seeds: int) -> None:
    seed, what = hunt(product, 0, seeds)
    if seed < 0:
        verdict.fault = what
        return
    clean, _ = hunt(ROOT, seed, seed + 1)
    if clean >= 0:
        verdict.fault = f"seed {seed} fails without the bug too"
    else:
        verdict.how = f"seed {seed}: {what}"


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
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    patches = [patch for patch in sorted(HERE.glob("*.patch")) if not options.names or patch.stem in options.names]
    if not patches or len(patches) < len(options.names):
        print(f"there is no such mutant among {', '.join(patch.stem for patch in sorted(HERE.glob('*.patch')))}")
        return 2
    survived = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for verdict in pool.map(lambda patch: try_mutant(patch, options.seeds), patches):
            survived += not verdict.how
            outcome = verdict.how or verdict.fault or f"SURVIVED {options.seeds} worlds"
            print(
                f"{'caught' if verdict.how else 'FAILED':7}{verdict.name:38}{verdict.took_s:5.0f} s  {outcome}",
                flush=True,
            )
    print(f"{len(patches) - survived} of {len(patches)} mutants are caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
