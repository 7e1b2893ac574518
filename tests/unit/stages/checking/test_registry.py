"""The list of models that `make models` checks, and how it tells what it could not run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from models.registry import Model, models

from models import run

pytestmark = pytest.mark.unit


def test_models_have_names_of_their_own_and_light_ones_come_first() -> None:
    known = models()
    names = [model.name for model in known]
    assert len(set(names)) == len(names) and names[:4] == ["loopback", "loopback-1s", "loopback-talk", "cascade"]
    assert not any(model.environment for model in known[:4])


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ('name = "a"', "either `pipeline` or `builder`"),
        ('name = "a"\nbuilder = ["no/such.py"]', "there is no no/such.py"),
        ('name = "a"\npipeline = "loopback"\ngpu = true', "gpu"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, entry: str, told: str) -> None:
    path = tmp_path / "registry.toml"
    path.write_text(f"[[model]]\n{entry}\n")
    with pytest.raises(msgspec.ValidationError, match=told):
        models(path)


def test_a_missing_environment_is_told_and_fails_whoever_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUOLOGUE_ENVS", str(tmp_path))
    monkeypatch.setattr(run, "models", lambda: (Model("mine", pipeline="loopback", environment="minicpmo"),))
    assert run.main(["--only", "mine"]) == 1
    told = capsys.readouterr().out
    assert "skipped: no environment 'minicpmo'; `make env NAME=minicpmo` makes it" in told and told.endswith(
        "0 passed, 0 failed, 1 skipped\n"
    )


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--only", "no-such"]) == 2
    assert "no model no-such; there are: loopback" in capsys.readouterr().err
