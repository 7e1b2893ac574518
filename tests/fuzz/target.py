"""What a fuzzed decoder promises: one `Target` each.

Rule 1. `check` gives its input to the product as a peer would, and raises where a promise is broken: an exception that
        is not the decoder's own, or something accepted that does not come back the same when it is written again.
Rule 2. An input is judged by itself: `check` keeps nothing from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

Mutator = Callable[[bytes, Random], bytes | None]
"""A changed input that the decoder still understands in part; None: it is not of the kind that can be changed so."""


@dataclass(frozen=True)
class Target:
    name: str
    check: Callable[[bytes], bool]
    """True: the decoder took it. Raises whatever breaks a promise."""
    seeds: Callable[[], Iterable[bytes]]
    """What the search begins with: real messages, and hostile ones."""
    mutate: Mutator
    modules: tuple[str, ...]
    """What it is to reach; the report tells how much of them it did."""
    base_bytes: int = 4 << 20
    bytes_per_byte: int = 64
    """Memory that one input may take at its peak: `base_bytes`, and so much for each of its bytes."""
    base_lines: int = 20_000
    lines_per_byte: int = 40
    """Lines of the product that one input may have run: time, without a clock."""
