"""How much an input may cost, measured without a clock: lines of the product that were run, and bytes at the peak.

Rule 1. A bound is of the form a + b * bytes of the input: a decoder is linear in what it is given.
Rule 2. What runs without end is stopped at its bound, where it is.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fuzz.target import Target

import duologue

PRODUCT = tuple(f"{portion}/" for portion in duologue.__path__)
"""Where its files are, whatever the folder of a checkout is called."""


class TooSlow(Exception):
    """More lines were run than an input of this size may cost."""


class TooLarge(Exception):
    """More memory was taken than an input of this size may cost."""


@contextmanager
def bounded(target: Target, size: int) -> Iterator[None]:
    """Run one input of `size` bytes within the bounds of `target`. Raises TooSlow, TooLarge."""
    with _lines(target.base_lines + target.lines_per_byte * size), _memory(target, size):
        yield


@contextmanager
def _lines(most: int) -> Iterator[None]:
    left = most

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooSlow(f"more than {most} lines")
        return line

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(PRODUCT) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _memory(target: Target, size: int) -> Iterator[None]:
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    yield
    _, peak = tracemalloc.get_traced_memory()
    most = target.base_bytes + target.bytes_per_byte * size
    if peak - held > most:
        raise TooLarge(f"{peak - held} bytes for an input of {size}, where {most} are the most")
