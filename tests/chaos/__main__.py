"""The fault campaign: `make chaos SECONDS=300 SESSIONS=40 SEED=1`; `DOUBLE=1` for faults that come two at a time.

Real processes under a schedule of faults drawn from the seed, clients that record all they hear, and a checker that
reads the recordings. Exits with 1 if a rule is broken or anything is left; how long outages were is told, not judged:
that depends on the machine. What a broken run recorded is left in `.chaos/SEED`; `KEEP=1` leaves that of every run.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from chaos.checker import Verdict, check
from chaos.outages import outages, table
from chaos.run import Options, Run, run
from chaos.schedule import KINDS
from chaos.witness import Stalls

ROOT: Final = Path(__file__).resolve().parents[2]
LEFT: Final = ROOT / ".chaos"
TOLD: Final = 30
"""Violations that are listed."""


def main() -> int:
    options, keep, again = _arguments()
    if again is not None:
        return _judge(options, msgspec.json.decode((again / "run.json").read_bytes(), type=Run), again)
    folder = Path(tempfile.mkdtemp(prefix="duologue-chaos-"))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(run(options, folder))
        (folder / "run.json").write_bytes(msgspec.json.encode(result))
        code = _judge(options, result, folder)
        if code or keep:
            print(f"\nwhat was recorded: {_leave(folder, options.seed)}")
        return code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _arguments() -> tuple[Options, bool, Path | None]:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long faults come")
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--double", action="store_true", help="two faults at a time")
    parser.add_argument("--kinds", default="", help=f"only these, with commas: {', '.join(KINDS)}")
    parser.add_argument("--keep", action="store_true", help="leave the recordings of a clean run too")
    parser.add_argument("--again", type=Path, help="judge the recordings of this folder again; nothing is run")
    given = parser.parse_args()
    kinds = tuple(kind.strip() for kind in given.kinds.split(",") if kind.strip())
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--kinds: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if given.sessions < 1 or given.seconds <= 0:
        parser.error("--sessions and --seconds are positive")
    return Options(given.seconds, given.sessions, given.seed, given.double, kinds), given.keep, given.again


def _judge(options: Options, result: Run, folder: Path) -> int:
    faults = [(happened.began, happened.told()) for happened in result.happened]
    began = time.monotonic()
    verdict = check(folder, options.sessions, faults, result.began)
    _tell(options, result, verdict)
    witnesses = [Stalls.read(folder / name) for name in ("witness.log", "clients.log")]
    stood = ", ".join(
        f"{name} {stalls.longest_s:.2f} s" for name, stalls in zip(("machine", "clients"), witnesses, strict=True)
    )
    print(f"\nlongest stall witnessed: {stood}; checked in {time.monotonic() - began:.0f} s\n")
    print(table(outages(verdict.heard, result.happened, witnesses)))
    return 1 if verdict.violations or result.left or result.wrong else 0


def _tell(options: Options, result: Run, verdict: Verdict) -> None:
    print(f"\nseed {options.seed}: {options.sessions} sessions, {len(result.happened)} faults")
    rows = {
        "sessions lost": verdict.count("session lost"),
        "covered commands lost": verdict.count("covered command lost"),
        "other commands lost": verdict.count("command lost"),
        "commands applied twice": verdict.count("applied twice"),
        "events lost": verdict.count("lost"),
        "events doubled": verdict.count("doubled"),
        "events after a terminal": verdict.count("after the end"),
        "responses without an end": verdict.count("never ended"),
        "foreign tones": verdict.count("foreign tone"),
        "phase jumps": verdict.count("phase jump"),
        "slots and keys left": len(result.left),
    }
    for name, count in rows.items():
        print(f"{count:8}  {name}")
    ends = ", ".join(f"{count} {how}" for how, count in verdict.ends.most_common())
    counts = ", ".join(f"{verdict.counts[name]} {name}" for name in ("events", "commands", "resumes", "gaps told"))
    print(f"{counts}; responses: {ends}")
    for name, amount in result.left.items():
        print(f"left: {name} {amount:g}")
    if result.wrong:
        print(f"the run came to an early end: {result.wrong}")
    if verdict.first:
        print(f"\nthe first violation, {verdict.first}")
        print("\nall, from the beginning:")
        for found in verdict.violations[:TOLD]:
            print(f"{found.at - result.began:9.3f}  session {found.session}: {found.rule}: {found.told}")


def _leave(folder: Path, seed: int) -> Path:
    target = LEFT / str(seed)
    shutil.rmtree(target, ignore_errors=True)
    LEFT.mkdir(exist_ok=True)
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("valkey", "*.sock"))
    return target


if __name__ == "__main__":
    sys.exit(main())
