"""`make models`: the conformance suite on every model of `registry.toml`, tiny checkpoints made for it.

    python tests/models/run.py [--only moshi,bridge] [--ci] [--make]

`--ci` leaves out what is not for CI; `--make` makes environments that are missing (`make env`). What is skipped is
printed with the reason. Exit code 1: a check failed, or one that was asked for by name could not be run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from models.registry import ROOT, Model, models

from duologue.cli.temporary import temporary_system
from duologue.model.environments import environment_path, how_to_make
from duologue.stages.checking.report import Report, line, summary


class Ran(NamedTuple):
    """`skipped`: why it could not be run."""

    model: Model
    seconds: float
    report: Report | None = None
    failed: str = ""
    skipped: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    wanted = options.only.split(",") if options.only else []
    known = {model.name: model for model in models()}
    if unknown := [name for name in wanted if name not in known]:
        sys.stderr.write(f"no model {', '.join(unknown)}; there are: {', '.join(known)}\n")
        return 2
    chosen = [known[name] for name in wanted] or [model for model in known.values() if model.ci or not options.ci]
    runs = [_run(model, make=options.make) for model in chosen]
    return _tell(runs, named=bool(wanted))


def _run(model: Model, *, make: bool) -> Ran:
    print(f"\n=== {model.name}", flush=True)
    started = time.monotonic()
    python = Path(sys.executable)
    if model.environment:
        python = environment_path(model.environment) / "bin" / "python"
        if not python.exists() and make:
            subprocess.run(["make", "-s", "env", f"NAME={model.environment}"], cwd=ROOT)
        if not python.exists():
            why = f"no environment {model.environment!r}; {how_to_make(model.environment, ())}"
            return _shown(Ran(model, 0.0, skipped=why))
    try:
        with tempfile.TemporaryDirectory(prefix="duologue-model-") as folder, _upstream(model.upstream) as extra:
            ran = _checked(model, str(python), Path(folder), {**os.environ, **extra}, started)
    except subprocess.TimeoutExpired:
        ran = Ran(model, time.monotonic() - started, failed=f"not through after {model.timeout_s:.0f} s")
    return _shown(ran)


@contextlib.contextmanager
def _upstream(pipeline: str) -> Iterator[dict[str, str]]:
    """Another system beside the one that is checked, for a model that lives elsewhere."""
    if not pipeline:
        yield {}
        return
    with temporary_system(pipeline) as state:
        yield {"UPSTREAM_URL": f"{state.url}/v1/realtime"}


def _checked(model: Model, python: str, folder: Path, environ: dict[str, str], started: float) -> Ran:
    pipeline = model.pipeline
    if model.builder:
        script, *arguments = model.builder
        built = subprocess.run(
            [python, str(ROOT / script), *arguments, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=model.timeout_s,
            env=environ,
        )
        if built.returncode:
            return Ran(model, time.monotonic() - started, failed=f"{script} ended with {built.returncode}")
        pipeline = built.stdout.splitlines()[-1]
        _add_check(Path(pipeline), model)
    left_s = max(model.timeout_s - (time.monotonic() - started), 1.0)
    command = [sys.executable, "-m", "duologue.cli.main", "model", "check", pipeline, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=left_s, env=environ, cwd=folder)
    seconds = time.monotonic() - started
    if done.returncode not in (0, 1) or not done.stdout:
        return Ran(model, seconds, failed=f"duologue model check ended with {done.returncode}")
    return Ran(model, seconds, msgspec.json.decode(done.stdout.splitlines()[-1], type=Report))


def _add_check(pipeline: Path, model: Model) -> None:
    text = pipeline.read_text()
    if model.check and "[check" not in text:
        pipeline.write_text(f"{text}\n{(ROOT / model.check).read_text()}")


def _shown(ran: Ran) -> Ran:
    for result in ran.report.results if ran.report else ():
        print(line(result))
    print(_line(ran), flush=True)
    return ran


def _line(ran: Ran) -> str:
    told = (
        ran.skipped and f"skipped: {ran.skipped}" or ran.failed or (summary(ran.report).strip() if ran.report else "")
    )
    return f"{ran.model.name:<16} {ran.seconds:5.0f} s  {told}"


def _tell(runs: Sequence[Ran], *, named: bool) -> int:
    """All in one table at the end."""
    bad = [ran for ran in runs if ran.failed or (ran.report is not None and ran.report.exit_code)]
    skipped = [ran for ran in runs if ran.skipped]
    print("\n=== models")
    for ran in runs:
        print(_line(ran))
    print(f"{len(runs) - len(bad) - len(skipped)} passed, {len(bad)} failed, {len(skipped)} skipped")
    return 1 if bad or (named and skipped) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The conformance suite on every model.")
    parser.add_argument("--only", help="names, with commas")
    parser.add_argument("--ci", action="store_true", help="leave out what is not for CI")
    parser.add_argument("--make", action="store_true", help="make environments that are missing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
