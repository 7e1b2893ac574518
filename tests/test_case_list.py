"""The list of cases and the tests that carry their ids: neither is without the other."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parent
CASES: dict[str, dict[str, dict[str, str]]] = tomllib.loads((ROOT / "cases.toml").read_text(encoding="utf-8"))
#: Kinds that are tested through and through: nothing of them may be "not yet".
WHOLE = ("protocol", "audio", "barge-in", "tools", "vad", "clients")
NOT_YET = "not yet"
_NAME = re.compile(r"test_([a-z]{3})_(\d\d)_\w")


def listed(state: str | None = None) -> dict[str, str]:
    """Kind by id, of all or of those in this state."""
    return {
        number: kind
        for kind, cases in CASES.items()
        for number, case in cases.items()
        if state is None or case.get("state", "") == state
    }


def carried(root: Path = ROOT) -> dict[str, list[str]]:
    """The tests by the id that their name carries."""
    kinds = {number[:3] for number in listed()}
    found: dict[str, list[str]] = {}
    for path in sorted(root.rglob("test_*.py")):
        for name in names_of_tests(path.read_text(encoding="utf-8")):
            match = _NAME.match(name)
            if match and match[1].upper() in kinds:
                found.setdefault(f"{match[1].upper()}-{match[2]}", []).append(f"{path.name}::{name}")
    return found


def names_of_tests(source: str) -> Iterator[str]:
    """The functions that pytest collects: those of the module itself."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_every_case_has_a_test_that_carries_its_id() -> None:
    due = listed().keys() - listed(NOT_YET).keys()
    assert sorted(due - carried().keys()) == []


def test_what_is_not_tested_yet_is_told_and_only_that() -> None:
    stale = sorted(listed(NOT_YET).keys() & carried().keys())
    assert stale == [], 'these have a test now: take `state = "not yet"` away in tests/cases.toml'


def test_nothing_of_the_whole_kinds_is_put_off() -> None:
    assert set(WHOLE) <= CASES.keys()
    assert [number for number, kind in listed(NOT_YET).items() if kind in WHOLE] == []


def test_no_test_carries_an_id_that_nobody_knows() -> None:
    assert sorted(carried().keys() - listed().keys()) == []


def test_every_case_says_what_it_is_about_and_nothing_else() -> None:
    for cases in CASES.values():
        for number, case in cases.items():
            assert re.fullmatch(r"[A-Z]{3}-\d\d", number), number
            assert case["title"] and case.keys() <= {"title", "state"}, number
            assert case.get("state", NOT_YET) == NOT_YET, number


def test_a_name_within_another_function_is_no_test() -> None:
    inner = "def outer():\n    def test_bar_99_hidden(): ...\n\nasync def test_bar_98_seen(): ...\n"
    assert list(names_of_tests(inner)) == ["outer", "test_bar_98_seen"]
