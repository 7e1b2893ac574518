"""Fuzzing of the decoders: `make fuzz`, `make fuzz FUZZ_SECONDS=600`, `make fuzz REPLAY=.fuzz/TARGET.crash-...`.

Each target is searched in a process of its own, several at once, for its share of the seconds. What breaks a promise
is left in `.fuzz/` as a file that replays, and exits with 1. Nothing but the search itself is random; the seed is
printed.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.registry import TARGETS
from fuzz.replay import replay

ROOT = Path(__file__).resolve().parents[2]
LEFT = ROOT / ".fuzz"
TOLD = 2000
"""Characters of a failure that are shown: the end of its traceback says where it is."""
REACH_FROM_S = 300
"""From so many seconds on it is measured what was reached, which takes a while itself."""


@dataclass
class Result:
    """Of one target."""

    name: str
    runs: int = 0
    edges: int = 0
    left: list[Path] = field(default_factory=list)
    told: str = ""
    reached: str = ""


def search(name: str, seconds: float, seed: int, measure: bool) -> Result:
    result = Result(name)
    with tempfile.TemporaryDirectory(prefix="duologue-fuzz-") as folder:
        corpus, found = Path(folder) / "corpus", Path(folder) / "found"
        corpus.mkdir()
        found.mkdir()
        told = _run("fuzz.worker", name, f"{seconds:.0f}", str(corpus), str(found), str(seed))
        text = told.stderr + told.stdout
        numbers = [int(number) for number in re.findall(r"^#(\d+)\t", text, re.M)]
        result.runs = max(numbers, default=0)
        result.edges = max((int(edges) for edges in re.findall(r" cov: (\d+)", text)), default=0)
        for file in sorted(found.iterdir()):
            kept = LEFT / f"{name}.{file.name[:20]}"
            LEFT.mkdir(exist_ok=True)
            kept.write_bytes(file.read_bytes())
            result.left.append(kept)
        if told.returncode:
            told_by = text.partition("=== Uncaught Python exception: ===")[2].partition("INFO: ")[0]
            result.told = (told_by or text)[-TOLD:]
        if measure:
            result.reached = _run("fuzz.reach", name, str(corpus)).stdout.strip()
    return result


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace")


def line(result: Result) -> str:
    reached = f", {result.reached}" if result.reached else ""
    verdict = "FAILED" if result.told else "clean "
    said = f"{verdict} {result.name:18} {result.runs:>9,} inputs, {result.edges:>5} edges{reached}"
    left = "".join(f"\n  make fuzz REPLAY={file.relative_to(ROOT)}" for file in result.left)
    return f"{said}\n{result.told.rstrip()}{left}" if result.told else said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--only", default="", help="names of targets, with commas")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31) or 1)
    parser.add_argument("--replay", type=Path, help="give this input to its target, once")
    options = parser.parse_args()
    if options.replay is not None:
        print("taken" if replay(options.replay) else "refused, as it should be")
        return 0
    names = options.only.split(",") if options.only else list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        print(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
        return 2
    jobs = min(os.cpu_count() or 1, len(names))
    share = max(2.0, options.seconds * jobs / len(names) - 3)  # a process takes about 3 s to begin
    print(f"seed {options.seed}, {share:.0f} s for each of {len(names)} targets, {jobs} at once", flush=True)
    failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(lambda name: search(name, share, options.seed, options.seconds >= REACH_FROM_S), names):
            print(line(result), flush=True)
            failed += bool(result.told)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
