"""Writes the tables of docs/client.md from the code, between its `generated` markers.

`python docs/generate_client.py` rewrites the page; `--check` says, by its exit code, whether that would change it.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pages

from duologue import client
from duologue.client import errors
from duologue.client.timing import TimingSummary
from duologue.inline import DuplexOmni, DuplexSessionHandle

PAGE = Path(__file__).with_name("client.md")
CLASSES: tuple[type, ...] = (client.DuplexClient, client.ResponseHandle, client.EventCollector, client.DuplexTrace)
INLINE: tuple[type, ...] = (DuplexOmni, DuplexSessionHandle)
INTERNAL = frozenset({"add_audio", "finish", "begin", "next_event", "detach", "gone"})
"""Public for the modules beside, not for programs."""


def error_table() -> str:
    """Every class of error, in the order of the module's tree, with what is above it."""
    rows = ["| class | is a | when |", "|---|---|---|"]
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, client.DuplexClientError):
            above = kind.__bases__[0].__name__
            rows.append(f"| `{name}` | `{above}` | {_first(kind)} |")
    return "\n".join(rows)


def timing() -> str:
    """The fields of the summary; what has no text of its own is a count of what its name says."""
    told = _attribute_texts(TimingSummary)
    rows = ["| field | |", "|---|---|"]
    rows += [
        f"| `{field.name}` | {told.get(field.name, 'how many')} |" for field in msgspec.structs.fields(TimingSummary)
    ]
    return "\n".join(rows)


def reference() -> str:
    """The public methods of the classes that a program uses."""
    parts = []
    for kind in (*CLASSES, *INLINE):
        rows = [f"### `{kind.__name__}`", "", "| method | |", "|---|---|"]
        rows += [
            f"| `{name}{_signature(method)}` | {_first(method) or 'as of `DuplexClient`'} |"
            for name, method in _methods(kind)
        ]
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _methods(kind: type) -> list[tuple[str, Any]]:
    """In the order in which they are written, the nearest class first."""
    found: dict[str, Any] = {}
    for owner in kind.__mro__:
        if owner.__module__.startswith("duologue."):
            for name, value in vars(owner).items():
                if inspect.isfunction(value) and not name.startswith("_") and name not in INTERNAL:
                    found.setdefault(name, value)
    return list(found.items())


def _signature(method: Any) -> str:
    """Without `self` and annotations: names and defaults tell enough."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain)).replace("|", "\\|")


def _first(thing: Any) -> str:
    """The first paragraph of the docstring, in one line."""
    text = inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def _attribute_texts(kind: type) -> dict[str, str]:
    """What stands below a field."""
    source = inspect.getsource(kind)
    return {
        name: " ".join(text.split())
        for name, text in re.findall(r"(\w+): \w+\n\s+\"\"\"(.+?)\"\"\"", source, re.DOTALL)
    }


TABLES = {"errors": error_table, "timing": timing, "reference": reference}


def page(text: str) -> str:
    return pages.filled(text, TABLES)


if __name__ == "__main__":
    sys.exit(pages.main(PAGE, TABLES))
