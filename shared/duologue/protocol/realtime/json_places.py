"""Where in JSON data a number is that nobody can take."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

MAX_PLACE = 256
"""Characters of a path that are told: its keys are the client's own, of any length."""


def find_not_finite(data: Any) -> str | None:
    """The path of a number that is not finite, None if all are. No longer than `MAX_PLACE` characters."""
    return _find(data, lambda value: isinstance(value, float) and not isfinite(value))


def find_beyond_64_bits(data: Any) -> str | None:
    """The path of an integer that no message can hold, None if there is none."""
    return _find(data, lambda value: isinstance(value, int) and not -(2**63) <= value < 2**64)


def _find(data: Any, wrong: Callable[[Any], bool]) -> str | None:
    todo: list[tuple[str, Any]] = [("", data)]
    while todo:
        path, value = todo.pop()
        if wrong(value):
            return path.encode("utf-8", "backslashreplace").decode()[:MAX_PLACE]  # half a surrogate pair is no text
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        todo += [(f"{path}.{key}" if path else str(key), one) for key, one in pairs]
    return None
