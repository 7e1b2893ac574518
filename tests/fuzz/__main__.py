"""Fuzzing of the decoders: `make fuzz`, `make fuzz FUZZ_SECONDS=600`, `make fuzz REPLAY=.fuzz/TARGET.crash-...`.

Each target is searched in a process of its own, several at once, for its share of the seconds. What breaks a promise
is left in `.fuzz/` as a file that replays, and exits with 1; the input stands in what is printed as well, so that a log
is enough. Nothing but the search itself is random; the seed is printed, and a search with the same seed begins the
same anywhere: a faster machine comes further.
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

from fuzz.quoted import quoted, unquoted
from fuzz.registry import TARGETS
from fuzz.replay import once, replay

ROOT = Path(__file__).resolve().parents[2]
LEFT = ROOT / ".fuzz"
TOLD = 2000
"""Characters of a failure that are shown: the end of its traceback says where it is."""
REACH_FROM_S = 300
"""From so many seconds on it is measured what was reached, which takes a while itself."""
THE_SAME_ANYWHERE = {
    "PYTHONHASHSEED": "0",  # the order of a set is part of what is reached
    "OPENBLAS_NUM_THREADS": "1",  # or each core of the machine takes of the address space that a worker has
    "MALLOC_ARENA_MAX": "2",
}


@dataclass
class Result:
    """Of one target."""

    name: str
    runs: int = 0
    edges: int = 0
    left: list[Path] = field(default_factory=list)
    code: int = 0
    """Of its process: what it was ended by, where it says nothing itself."""
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
            result.code = told.returncode
            told_by = text.partition("=== Uncaught Python exception: ===")[2].partition("INFO: ")[0]
            result.told = (told_by or text)[-TOLD:]
        if measure:
            result.reached = _run("fuzz.reach", name, str(corpus)).stdout.strip()
    return result


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTHONDONTWRITEBYTECODE": "1", **THE_SAME_ANYWHERE}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace")


def line(result: Result) -> str:
    reached = f", {result.reached}" if result.reached else ""
    verdict = "FAILED" if result.code else "clean "
    said = f"{verdict} {result.name:18} {result.runs:>9,} inputs, {result.edges:>5} edges{reached}"
    left = "".join(_left(result, file) for file in result.left)
    return f"{said} (exit {result.code})\n{result.told.rstrip()}{left}" if result.code else said


def _left(result: Result, file: Path) -> str:
    word = quoted(result.name, file.read_bytes())
    told = f"make fuzz REPLAY={word}" if word else f"too long to print: {file.stat().st_size} bytes"
    return f"\n  make fuzz REPLAY={os.path.relpath(file, ROOT)}\n  {told}"


def _again(what: str) -> bool:
    """Whether the decoder takes this input: a file, or one as it stands in a log. Raises ValueError of what was cut."""
    if what.partition(":")[0] not in TARGETS:
        return replay(Path(what))
    name, data = unquoted(what)
    return once(TARGETS[name], data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--only", default="", help="names of targets, with commas")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31) or 1)
    parser.add_argument("--replay", help="give this input to its target, once: a file, or TARGET:BASE64 of a log")
    options = parser.parse_args()
    if options.replay is not None:
        print("taken" if _again(options.replay) else "refused, as it should be")
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
            failed += bool(result.code)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
