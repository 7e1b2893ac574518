"""The namespace package: one portion in each import root, and nothing else importable by accident."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOTS = [ROOT / name for name in SETTINGS["tool"]["hatch"]["build"]["dev-mode-dirs"]]


def test_no_portion_has_an_init() -> None:
    assert [root for root in ROOTS if (root / "duologue" / "__init__.py").exists()] == []


def test_duologue_is_a_namespace_that_covers_all_portions() -> None:
    spec = importlib.util.find_spec("duologue")
    assert spec is not None
    assert spec.origin is None
    assert set(spec.submodule_search_locations or ()) == {str(root / "duologue") for root in ROOTS}


def test_the_wheel_holds_every_portion() -> None:
    packages = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {ROOT / package for package in packages} == {root / "duologue" for root in ROOTS}


@pytest.mark.parametrize(
    "name", ["shared", "services", "gateway", "session", "stages", "client", "models", "inline", "cli"]
)
def test_no_bare_name_is_importable(name: str, tmp_path: Path) -> None:
    program = f"import importlib.util as u; print(u.find_spec({name!r}))"
    ran = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, check=True)
    assert ran.stdout.strip() == b"None"


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_an_import_root_holds_one_python_name(root: Path) -> None:
    stray = [path.name for path in root.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert stray == []


def test_every_file_of_the_product_is_of_readable_size() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for root in ROOTS
        for path in root.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 600
    }
    assert long == {}
