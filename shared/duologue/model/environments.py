"""Where a stage worker's virtual environment is, and what is missing in it.

Two models may need different versions of one library, so a stage names the environment of its worker (`venv`) and
what must be in it (`requires`). A name is a folder below $DUOLOGUE_ENVS; without that, below `.envs` of the
checkout, or of the current folder where this is not a checkout.

Rule 1. Nothing of an environment is imported by whoever asks: its own interpreter is run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from duologue.model import environment_probe
from duologue.model.pipeline import PipelineError, PipelineSpec

ENVS: Final = "DUOLOGUE_ENVS"
_CHECKOUT: Final = Path(__file__).resolve().parents[3]
_PROBE_S: Final = 180.0


class Probed(msgspec.Struct, frozen=True):
    """What an interpreter says of its environment."""

    version: str
    missing: tuple[str, ...] = ()
    """One line for each requirement that is not met."""
    failed: tuple[str, ...] = ()
    """One line for each module that cannot be imported."""


def environments_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder below which environments have names."""
    told = (os.environ if environ is None else environ).get(ENVS)
    if told:
        return Path(told).absolute()
    at_home = (_CHECKOUT / "locks" / "envs").is_dir()
    return (_CHECKOUT if at_home else Path.cwd()) / ".envs"


def environment_path(venv: str) -> Path:
    """The folder of an environment: a name below the environments' folder, or an absolute folder."""
    return environments_folder() / venv


def interpreter(pipeline: PipelineSpec, worker: str) -> str:
    """The Python that runs this worker group. Raises PipelineError, which says how its environment is made."""
    venv = pipeline.venv_of(worker)
    if not venv:
        return sys.executable
    folder = environment_path(venv)
    python = folder / "bin" / "python"
    if not python.exists():
        raise PipelineError(
            f"pipeline {pipeline.name}: worker {worker} runs in the environment {venv!r}, and there is none in "
            f"{folder}; {how_to_make(venv, pipeline.requires_of(worker))}"
        )
    return str(python)


def how_to_make(venv: str, requires: Sequence[str]) -> str:
    """The command that makes an environment."""
    if not os.path.isabs(venv) and (_CHECKOUT / "locks" / "envs" / f"{venv}.txt").exists():
        return f"`make env NAME={venv}` makes it"
    folder = environment_path(venv)
    ours = f"{_CHECKOUT}[stages]" if (_CHECKOUT / "pyproject.toml").is_file() else "duologue[stages]"
    packages = " ".join(f"'{name}'" for name in (ours, *requires))
    return f"`python3 -m venv {folder} && {folder}/bin/pip install {packages}` makes it"


def probe(
    python: str, requires: Sequence[str], modules: Sequence[str], environ: Mapping[str, str] | None = None
) -> Probed:
    """Ask an interpreter whether packages have these versions and modules can be imported. `environ`: what the
    stages set besides. Raises PipelineError if it cannot be run or does not answer."""
    command = [python, "-P", environment_probe.__file__, *requires, "--", *modules]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_S, env={**os.environ, **(environ or {})}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineError(f"{python}: {error}") from None
    try:
        return msgspec.json.decode(ran.stdout.splitlines()[-1] if ran.stdout else "", type=Probed)
    except msgspec.DecodeError:
        why = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise PipelineError(f"{python}: {why}") from None
