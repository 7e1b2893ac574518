"""Writes the tables of docs/protocol.md from the code, between its `generated` markers.

`python docs/generate.py` rewrites the page; `--check` says, by its exit code, whether that would change it.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pages

from duologue.protocol.duplex import ERROR_CODES, Dialect, DuplexEvent
from duologue.protocol.duplex.decode import ALIASES, WIRE_TYPES
from duologue.protocol.duplex.projection import shown_as

PAGE = Path(__file__).with_name("protocol.md")
TRACES = Path(__file__).parents[1] / "tests" / "system" / "golden_traces" / "traces.toml"


def commands() -> str:
    """Wire type, aliases, fields as written; a field without `?` is required."""
    rows = ["| type | also | fields |", "|---|---|---|"]
    for name, kind in WIRE_TYPES.items():
        aliases = ", ".join(f"`{alias}`" for alias, target in ALIASES.items() if target == name)
        rows.append(f"| `{name}` | {aliases} | {_fields(kind, optional='?')} |")
    return "\n".join(rows)


def events() -> str:
    """Wire type, keys in wire order, and what the OpenAI dialects call it."""
    rows = ["| type | keys | `openai` | `openai-beta` |", "|---|---|---|---|"]
    for kind in get_args(DuplexEvent):
        name = str(kind.__struct_config__.tag)
        others = (_shown(kind, name, dialect) for dialect in (Dialect.openai, Dialect.openai_beta))
        rows.append(f"| `{name}` | {_fields(kind, optional='±')} | {' | '.join(others)} |")
    return "\n".join(rows)


def errors() -> str:
    rows = ["| code | class | retryable | meaning | in the OpenAI dialects |", "|---|---|---|---|---|"]
    for row in ERROR_CODES.values():
        if row.reserved:
            continue
        name = f"`{row.openai}`" if row.openai else ""
        rows.append(f"| `{row.code}` | {row.error_type} | {'yes' if row.retryable else ''} | {row.gist} | {name} |")
    return "\n".join(rows)


def reserved() -> str:
    """Codes of the contract that nothing sends."""
    rows = ["| code | meaning | why it is not sent |", "|---|---|---|"]
    rows += [f"| `{row.code}` | {row.gist} | {row.reserved} |" for row in ERROR_CODES.values() if row.reserved]
    return "\n".join(rows)


def differences() -> str:
    """Where a step of the recorded conversations goes another way, what is sent instead, and why."""
    rows = ["| trace and step | 0.30.0 | here | why |", "|---|---|---|---|"]
    for step in tomllib.loads(TRACES.read_text(encoding="utf-8"))["step"]:
        if "instead" in step:
            there, here = _run(step["golden"]), _run(step["instead"])
            rows.append(f"| {step['name']} | {there} | {here} | {step['why']} |")
    return "\n".join(rows)


def _run(names: list[str]) -> str:
    return ", ".join(f"[{name}]" if len(name) == 1 else f"`{name}`" for name in names)


def _fields(kind: type[msgspec.Struct], *, optional: str) -> str:
    names = []
    for field in msgspec.structs.fields(kind):
        if field.name in ("event_id", "server_event_seq"):
            continue
        omitted = not field.required if optional == "?" else field.default is msgspec.UNSET
        names.append(f"`{field.name}`{optional if omitted else ''}")
    return ", ".join(names) or "-"


def _shown(kind: Any, name: str, dialect: Dialect) -> str:
    told = shown_as(kind, dialect)
    if told is None:
        return "-"
    return "the same" if told == name else f"`{told}`"


TABLES = {"commands": commands, "events": events, "errors": errors, "reserved": reserved, "differences": differences}


def page(text: str) -> str:
    return pages.filled(text, TABLES)


if __name__ == "__main__":
    sys.exit(pages.main(PAGE, TABLES))
