"""The environments of stage workers: what a pipeline may say of them, where they are, what is missing in one."""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

from duologue.model.environments import environments_folder, how_to_make, interpreter, probe
from duologue.model.pipeline import PipelineError, PipelineSpec, load_pipeline

pytestmark = pytest.mark.unit


def written(folder: Path, **lines: str) -> Path:
    """The loopback pipeline with these lines added to the stages hear, word, voice and pack."""
    text = (files("duologue.models.loopback") / "loopback.toml").read_text()
    for stage, line in lines.items():
        text = text.replace(f'name = "{stage}"', f'name = "{stage}"\n{line}')
    path = folder / "mine.toml"
    path.write_text(text.replace('name = "loopback"', 'name = "mine"'))
    return path


def pipeline_in(folder: Path, venv: str) -> PipelineSpec:
    line = f'venv = "{venv}"\nrequires = ["msgspec==9.9"]'
    return load_pipeline(written(folder, hear=line, word=line))


def test_a_worker_group_has_one_environment_and_the_requirements_of_all_its_stages(tmp_path: Path) -> None:
    path = written(tmp_path, hear='venv = "a"\nrequires = ["x==1", "y==2"]', word='venv = "a"\nrequires = ["x==1"]')
    pipeline = load_pipeline(path)
    assert (pipeline.venv_of("loopback-a"), pipeline.venv_of("loopback-b")) == ("a", "")
    assert pipeline.requires_of("loopback-a") == ("x==1", "y==2")


@pytest.mark.parametrize(
    ("hear", "word", "named"),
    [
        ('venv = "a"', "", r"stages\[1\] \(word\): venv is ''.*loopback-a"),
        ('requires = ["x>=1"]', "", r"stages\[0\] \(hear\): requires: 'x>=1'"),
        ('requires = ["x==1"]', 'requires = ["x==2"]', r"stages\[1\] \(word\): requires x==2.*x==1"),
        ('venv = "../a"', 'venv = "../a"', "venv of worker 'loopback-a'"),
    ],
)
def test_what_stages_of_one_process_cannot_have(tmp_path: Path, hear: str, word: str, named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        load_pipeline(written(tmp_path, hear=hear, word=word))


def test_a_name_is_a_folder_among_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE_ENVS", str(tmp_path))
    python = tmp_path / "moshi" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert interpreter(pipeline_in(tmp_path, "moshi"), "loopback-a") == str(python)
    assert interpreter(pipeline_in(tmp_path, "moshi"), "loopback-b") == sys.executable
    assert interpreter(pipeline_in(tmp_path, str(tmp_path / "moshi")), "loopback-a") == str(python)


def test_environments_are_beside_the_checkout_unless_told_otherwise() -> None:
    assert environments_folder({}) == Path(__file__).parents[3] / ".envs"


@pytest.mark.parametrize(("venv", "command"), [("minicpmo", "make env NAME=minicpmo"), ("mine", "python3 -m venv")])
def test_a_missing_environment_is_named_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, venv: str, command: str
) -> None:
    monkeypatch.setenv("DUOLOGUE_ENVS", str(tmp_path / "envs"))
    with pytest.raises(PipelineError, match=f"mine.*{tmp_path / 'envs' / venv}.*{command}"):
        interpreter(pipeline_in(tmp_path, venv), "loopback-a")


def test_a_probe_tells_versions_and_imports() -> None:
    found = probe(sys.executable, [f"msgspec=={version('msgspec')}", "numpy==0.1", "no-such==1"], ["json", "no_such"])
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert found.missing == (f"numpy is {version('numpy')}, not 0.1", "no-such==1 is not installed")
    assert found.failed == ("no_such: ModuleNotFoundError: No module named 'no_such'",)


def test_a_probe_sets_what_the_stages_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wants_it.py").write_text("import os\nos.environ['IT_IS_SET']\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert probe(sys.executable, [], ["wants_it"]).failed == ("wants_it: KeyError: 'IT_IS_SET'",)
    assert probe(sys.executable, [], ["wants_it"], {"IT_IS_SET": "1"}).failed == ()


def test_what_is_no_python_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no-python"):
        probe(str(tmp_path / "no-python"), [], [])
    with pytest.raises(PipelineError, match="exit code 1"):
        probe("/bin/false", [], [])


def test_an_environment_of_ones_own_is_made_with_this_checkout_in_it(tmp_path: Path) -> None:
    """It may be on no index, and must be what runs here."""
    how = how_to_make(str(tmp_path / "parrot"), ("torch==2.13.0",))
    mine, checkout = tmp_path / "parrot", Path(__file__).parents[3]
    assert how == f"`python3 -m venv {mine} && {mine}/bin/pip install '{checkout}[stages]' 'torch==2.13.0'` makes it"
