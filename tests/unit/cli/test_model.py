"""`duologue model`: which interpreter checks a model, and what a new one is called."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from duologue.cli import main as cli
from duologue.cli.errors import UserError
from duologue.cli.new_model import write_model

pytestmark = pytest.mark.unit


def pipeline_with(folder: Path, *venvs: str) -> str:
    """The loopback pipeline with its two workers in these environments."""
    text = (files("duologue.models.loopback") / "loopback.toml").read_text()
    for worker, venv in zip(("loopback-a", "loopback-b"), venvs, strict=True):
        text = text.replace(f'worker = "{worker}"', f'worker = "{worker}"\nvenv = "{venv}"')
    path = folder / "mine.toml"
    path.write_text(text.replace('name = "loopback"', 'name = "mine"'))
    return str(path)


def test_a_model_is_checked_in_its_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$0 $*"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert cli.main(["model", "check", pipeline_with(tmp_path, str(tmp_path), str(tmp_path)), "--json"]) == 0
    first, _, report = capfd.readouterr().out.strip().partition("\n")
    assert first == f"{python} -m duologue.stages.checking {tmp_path / 'mine.toml'} --json"
    told = json.loads(report)
    assert told["pipeline"] == "mine" and {result["verdict"] for result in told["results"]} <= {"passed", "declared"}


def test_what_cannot_be_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "check", pipeline_with(tmp_path, "/nowhere/a", "/nowhere/a")]) == 2
    assert "there is none in /nowhere/a" in capsys.readouterr().err
    other = tmp_path / "other" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    assert cli.main(["model", "check", pipeline_with(tmp_path, str(tmp_path / "other"), "")]) == 2
    assert "several environments" in capsys.readouterr().err


def test_a_new_model_has_the_name_of_a_package(tmp_path: Path) -> None:
    written = write_model("my_bird", tmp_path)
    names = ["__init__.py", "engine.py", "my_bird.toml", "plugin.py", "wire.py"]
    assert [path.name for path in written] == names and "class MyBird(" in written[3].read_text()
    assert not any("$" in path.read_text() for path in written)
    for name, why in (("my-bird", "no name"), ("Bird", "no name"), ("class", "no name"), ("my_bird", "there already")):
        with pytest.raises(UserError, match=why):
            write_model(name, tmp_path)
