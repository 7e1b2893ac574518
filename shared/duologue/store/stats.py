"""Counters of one process's store, plain numbers: the adapters count, the metrics room reads at each scrape.

Rule 1. No lock and no label look-up per call: everything here belongs to the loop's thread.
Rule 2. Keys are few: names of scripts, kinds of failures, the numbers that a script compares.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the buckets of `Times`."""

REFUSALS: Final = frozenset({b"owner", b"number", b"generation", b"egress", b"conflict", b"exists", b"gone"})
"""The first word of a script's reply when a number that it was given is not the stored one."""


class Times:
    """How long calls took: one count for each bucket, the last one for what is above all bounds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True)
class StoreStats:
    """All connections of one process to its store and its journal."""

    bounds_s: tuple[float, ...] = BOUNDS_S
    calls: dict[str, Times] = field(default_factory=dict)
    """By script, answered calls only."""
    failures: dict[tuple[str, str], int] = field(default_factory=dict)
    """By script and kind: timeout | connection | server (it answered with an error) | full (our own bound)."""
    refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    """By script and the number that was refused (see `REFUSALS`)."""
    memory_used: float = 0.0
    """Share of the budget of the fuller server; 0: no budget, or not known yet."""
    journal_limit: int = 0
    """What one journal may hold now, in bytes."""
    journal_bytes: int = 0
    """Of the append commands that got in, keys and numbers included."""
    journal_appends: int = 0
    journal_trimmed: int = 0
    """Entries that the bound of their journal pushed out."""
    journal_full: int = 0
    """Batches that were not taken because too much was out."""
    journal_times: Times = field(default_factory=Times)
    """From the write of a loop turn's batches to the reply of the last of them."""

    def answered(self, script: str, seconds: float) -> None:
        times = self.calls.get(script)
        if times is None:
            times = self.calls[script] = Times()
        times.add(seconds)

    def failed(self, script: str, kind: str, times: int = 1) -> None:
        self.failures[script, kind] = self.failures.get((script, kind), 0) + times

    def refused(self, script: str, number: str) -> None:
        self.refusals[script, number] = self.refusals.get((script, number), 0) + 1
