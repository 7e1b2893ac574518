"""Writes the tables of docs/operations.md from the code, between its `generated` markers.

`python docs/generate_operations.py` rewrites the page; `--check` says, by its exit code, whether that would
change it. The meaning of a setting is the text under it in `runtime/settings.py`.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pages
from bounds import bus, gateway, others, shard, store, worker
from prometheus_client.core import Metric

from duologue.bus.stats import BusStats
from duologue.delivery.breaker import StoreBreaker
from duologue.delivery.pump import Pumps
from duologue.runtime import metrics as declared
from duologue.runtime.bus_metrics import BusCollector
from duologue.runtime.metric_registry import PROCESSES, REGISTRIES
from duologue.runtime.settings import Section, SystemSettings
from duologue.runtime.store_metrics import StoreCollector
from duologue.store.stats import StoreStats

PAGE = Path(__file__).with_name("operations.md")
BOUNDS = {
    "Gateway": gateway.BOUNDS,
    "Session shard": shard.BOUNDS,
    "Stage worker": worker.BOUNDS,
    "Bus": bus.BOUNDS,
    "Store": store.BOUNDS,
    "Others": others.BOUNDS,
}

assert declared.__doc__  # importing it is what declares the metrics


def settings() -> str:
    """Every key with its variable, its default and what it means."""
    tables: list[str] = []
    top = [field for field in msgspec.structs.fields(SystemSettings) if not _is_section(field.type)]
    tables.append(_keys("", SystemSettings, [field.name for field in top]))
    for field in msgspec.structs.fields(SystemSettings):
        if _is_section(field.type):
            names = [key.name for key in msgspec.structs.fields(field.type)]
            tables.append(f"`[{field.name}]`\n\n" + _keys(field.name, field.type, names))
    return "\n\n".join(tables)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _keys(section: str, kind: type[Section], names: list[str]) -> str:
    meanings = _meanings(kind)
    rows = ["| key | environment | default | meaning |", "|---|---|---|---|"]
    for name in names:
        default = getattr(kind(), name)
        variable = f"`{f'DUOLOGUE_{section}__{name}'.upper()}`" if section else "-"
        rows.append(f"| `{name}` | {variable} | {_shown(default)} | {meanings[name]} |")
    return "\n".join(rows)


def _shown(value: Any) -> str:
    if value is True or value is False:
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value) or "none"
    if value == "":
        return "empty"
    if isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        mib, rest = divmod(value, 1024 * 1024)
        return f"`{value}`" + (f" ({mib} MiB)" if mib and not rest else "")
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _meanings(kind: type[Section]) -> dict[str, str]:
    """The text under each field. KeyError later: a field without any."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    return found


def families() -> list[Metric]:
    """Every metric that some process shows."""
    collectors = BusCollector(BusStats()), StoreCollector(StoreStats(), Pumps(), StoreBreaker())
    try:
        return [family for process in PROCESSES for family in REGISTRIES[process].collect()]
    finally:
        for collector in collectors:
            collector.close()


def metrics() -> str:
    rows = ["| metric | kind | meaning |", "|---|---|---|"]
    for family in families():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {family.documentation} |")
    return "\n".join(rows)


def bounds() -> str:
    tables: list[str] = []
    for group, rows in BOUNDS.items():
        lines = [
            f"**{group}**",
            "",
            "| what | limit | where | at the bound | metric | test |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            shown = "<br>".join(f"`{metric}`" for metric in row.metrics) or "-"
            tests = "<br>".join(f"`{test}`" for test in row.tests)
            lines.append(f"| {row.what} | {row.limit} | {row.where} | {row.result} | {shown} | {tests} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


TABLES = {"settings": settings, "metrics": metrics, "bounds": bounds}


def page(text: str) -> str:
    return pages.filled(text, TABLES)


if __name__ == "__main__":
    sys.exit(pages.main(PAGE, TABLES))
