"""docs/operations.md says what the code says, and every bound that it lists has what it claims to have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import generate_operations
import msgspec
import pytest

from duologue.runtime.settings import SystemSettings

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
PRODUCT = ("shared", "models", "services/gateway", "services/session", "services/stages", "client", "inline", "cli")


ROWS: list[Any] = [row for rows in generate_operations.BOUNDS.values() for row in rows]


def test_the_tables_are_up_to_date() -> None:
    written = (ROOT / "docs" / "operations.md").read_text()
    assert generate_operations.page(written) == written, "run: python docs/generate_operations.py"


def test_every_setting_is_in_the_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for section in msgspec.structs.fields(SystemSettings):
        assert f"`{section.name}`" in page or f"`[{section.name}]`" in page
        if isinstance(section.type, type) and issubclass(section.type, msgspec.Struct):
            for key in msgspec.structs.fields(section.type):
                assert f"`DUOLOGUE_{section.name}__{key.name}`".upper() in page.upper()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.what))
def test_a_bound_has_a_test_that_reaches_it(row: Any) -> None:
    assert row.tests
    for test in row.tests:
        file, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), test


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.what))
def test_a_bound_is_counted(row: Any) -> None:
    names = {f"{f.name}_total" if f.type == "counter" else f.name for f in generate_operations.families()}
    for metric in row.metrics:
        if "." in metric:  # an attribute of the client's side
            owner, _, attribute = metric.partition(".")
            code = [path.read_text() for room in ("client", "cli") for path in (ROOT / room).rglob("*.py")]
            assert any(f"class {owner}" in text and f"self.{attribute} += 1" in text for text in code), metric
        else:
            assert metric in names | {"up"}, metric


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.what))
def test_a_bound_is_where_the_page_says(row: Any) -> None:
    section = ""
    for place in re.findall(r"`([^`]+)`", row.where):
        if place.endswith(".py"):
            assert any((ROOT / room / "duologue" / place).exists() for room in PRODUCT), place
            continue
        if place.startswith("["):
            section, _, place = place[1:].partition("] ")
        assert hasattr(getattr(SystemSettings(), section), place), place
