"""`docs/models.md` names every check and every key of the `[check]` table, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duologue.model.pipeline import PipelineError, PipelineSpec, StageSpec
from duologue.stages.checking.suite import CHECKS, FIRST
from duologue.stages.checking.table import CheckTable, as_checked, check_table

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[4] / "docs" / "models.md").read_text()


def rows(after: str, before: str) -> list[list[str]]:
    section = PAGE[PAGE.index(after) : PAGE.index(before)]
    lines = [line for line in section.splitlines() if line.startswith("| ") or line.startswith("|`")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines][1:]


def test_every_check_is_explained() -> None:
    told = [row[0] for row in rows("## What is checked", "### The table `[check]`")]
    assert told == ["loads", FIRST.name, *(one.name for one in CHECKS)]


def test_every_key_is_explained_with_its_default() -> None:
    told = {row[0].strip("`"): row[1].strip('"') for row in rows("### The table `[check]`", "## Not yet run")}
    table = CheckTable()
    assert told.keys() == set(CheckTable.__struct_fields__) - {"why"}
    for key, default in told.items():
        value = getattr(table, key)
        if value not in ("", {}):
            assert default == (str(value).lower() if isinstance(value, bool) else re.sub(r"\.0$", "", str(value))), key


def test_a_wrong_key_is_named() -> None:
    pipeline = PipelineSpec("mine", "x:y", (StageSpec("one", "x:y", "w"),), check={"unitz": 3})
    with pytest.raises(PipelineError, match="mine: check: .*unitz"):
        check_table(pipeline)


def test_options_of_the_table_are_put_over_those_of_the_pipeline() -> None:
    stages = (StageSpec("one", "x:y", "w"),)
    pipeline = PipelineSpec("mine", "x:y", stages, options={"deep": {"a": 1, "b": 2}, "c": 3})
    assert as_checked(pipeline, CheckTable(options={"deep": {"b": 4}})).options == {"deep": {"a": 1, "b": 4}, "c": 3}
