"""A page of the docs with tables that are written from the code, between its `generated` markers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def filled(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """The page with each table in its place."""
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, found = pattern.subn(lambda m, t=table: f"{m[1]}\n{t()}\n\n{m[2]}", text)  # type: ignore[misc]
        assert found == 1, f"the page has no place for {name}"
    return text


def main(path: Path, tables: Mapping[str, Callable[[], str]]) -> int:
    """Rewrite the page; with `--check` only say, by the exit code, whether that would change it."""
    written = path.read_text()
    due = filled(written, tables)
    if "--check" in sys.argv[1:]:
        return int(due != written)
    path.write_text(due)
    return 0
