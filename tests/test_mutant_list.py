"""Every planted bug still applies to the product, and the tests that it names are there: a test that moves shows here
at once, and not only where the mutants run."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from mutants.run import HERE, INVARIANTS, ROOT, Mutant, copy_product, read

pytestmark = pytest.mark.unit

MUTANTS = [read(patch) for patch in sorted(HERE.glob("*.patch"))]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("product")
    copy_product(folder)
    return folder


def missing(mutant: Mutant) -> list[str]:
    """What the suite of a mutant names and does not find: its file, or words of its `-k`."""
    if not mutant.suite:
        return []
    path, *rest = shlex.split(mutant.suite)
    file = ROOT / path.partition("::")[0]
    if not file.is_file():
        return [path]
    text = file.read_text(encoding="utf-8")
    words = [
        word for part in rest if part != "-k" for word in re.findall(r"\w+", part) if word not in ("and", "or", "not")
    ]
    return [word for word in words if word not in text]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.patch.stem)
def test_a_planted_bug_applies_and_its_tests_are_there(mutant: Mutant, product: Path) -> None:
    check = ["git", "apply", "--check", "-C1", "--recount", str(mutant.patch)]
    applied = subprocess.run(check, cwd=product, capture_output=True, text=True)
    assert not applied.returncode, applied.stderr
    assert missing(mutant) == []


def test_every_invariant_has_a_planted_bug() -> None:
    assert {mutant.invariant for mutant in MUTANTS} == set(range(1, INVARIANTS + 1))


def test_a_suite_that_moved_is_found_missing() -> None:
    suite = "tests/unit/gateway/test_gateway.py -k store_was_away"
    assert missing(Mutant(Path("x.patch"), 1, "", 0, suite)) == ["store_was_away"]
    assert missing(Mutant(Path("x.patch"), 1, "", 0, "tests/unit/nowhere.py")) == ["tests/unit/nowhere.py"]
