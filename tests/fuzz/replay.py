"""An input that broke a promise, once more: the traceback of the product, and nothing around it.

The name of its file says whose it is: `TARGET.kind-digest`.
"""

from __future__ import annotations

from pathlib import Path

from fuzz.bounds import bounded
from fuzz.registry import TARGETS
from fuzz.target import Target

FOUND = Path(__file__).parent / "found"
"""Inputs that once broke a promise. Tests replay them for ever."""


def target_of(file: Path) -> Target:
    """Raises KeyError: no target has this name."""
    return TARGETS[file.name.partition(".")[0]]


def replay(file: Path) -> bool:
    """Whether the decoder takes it. Raises what the promise breaks with."""
    return once(target_of(file), file.read_bytes())


def once(target: Target, data: bytes) -> bool:
    """The same of an input that is no file."""
    with bounded(target, len(data)):
        return target.check(data)
