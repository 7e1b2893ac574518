"""`duologue model`: write a new model, and check one against the contract of plugins and engines."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from duologue.cli.errors import UserError
from duologue.cli.new_model import write_model
from duologue.model.catalog import find_pipeline
from duologue.model.environments import interpreter
from duologue.model.pipeline import PipelineError, PipelineSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="COMMAND")
    check = kinds.add_parser("check", help="run the conformance suite on a model; exit code 1 if a check fails")
    check.add_argument("pipeline", help="the name of an installed model, or a TOML file")
    check.add_argument("--json", action="store_true", help="one JSON object")
    check.add_argument("--python", help="run it with this interpreter, whatever environment the stages name")
    new = kinds.add_parser("new", help="write the folder of a new model, which works as it is")
    new.add_argument("name", help="what it is called; the folder of this name is made here")


def run(options: argparse.Namespace) -> int:
    return _new(options.name) if options.kind == "new" else _check(options)


def _new(name: str) -> int:
    for path in write_model(name, Path.cwd()):
        print(os.path.relpath(path))
    print(f"now: duologue model check {name}/{name}.toml")
    return 0


def _check(options: argparse.Namespace) -> int:
    """In a process of its own, with the interpreter of the model's environment. The current folder is importable
    there, as it is for the processes of `duologue up`."""
    try:
        python = options.python or _interpreter(find_pipeline(options.pipeline))
    except PipelineError as error:
        raise UserError(str(error)) from None
    command = [python, "-m", "duologue.stages.checking", options.pipeline]
    sys.stdout.flush()
    return subprocess.run([*command, "--json"] if options.json else command).returncode


def _interpreter(pipeline: PipelineSpec) -> str:
    pythons = {interpreter(pipeline, worker): pipeline.venv_of(worker) for worker in pipeline.workers}
    if len(pythons) > 1:
        names = ", ".join(repr(venv) for venv in pythons.values())
        raise UserError(
            f"the stages of {pipeline.name} live in several environments ({names}), and are checked in one process; "
            "name an interpreter that can import all of them with --python"
        )
    return next(iter(pythons))
