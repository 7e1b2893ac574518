"""One row of the bounds that docs/operations.md lists: limits are read of the code, the rest is said here.

What is bounded, its limit, the setting or the module that holds it, what happens at the bound, the metric that
moves then, and the tests that reach it (under `tests/`). A test checks that all of them exist.
"""

from __future__ import annotations

from typing import NamedTuple

KIB, MIB = 1024, 1024 * 1024


def size(count: int) -> str:
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


class Bound(NamedTuple):
    what: str
    limit: str
    where: str
    result: str
    metrics: tuple[str, ...]
    tests: tuple[str, ...]
