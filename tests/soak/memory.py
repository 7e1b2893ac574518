"""The memory of processes over a run, and how each grows when it is warm.

A process fills things once: the heap up to the most that it ever needed at a time, caches, code that runs for the first
time. That is over after some hundred sessions and says nothing of the thousandth, so growth is told of the second half
of a process's own life, and not before it has lived through `WARM_CYCLES`. A process that was restarted is another
one, which is judged in the same way: who kills does so early enough that it has a second half. One that has not (too
few samples behind it when it died, or when the run ended) has no slope, and `unjudged` says so of those that live.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import psutil

WARM_CYCLES = 1000
MIN_POINTS = 4
"""Fewer samples of one process say nothing of it."""

Who = tuple[str, int]
"""Name and pid."""


@dataclass
class Memory:
    """Samples by process: (cycles so far, resident kB)."""

    samples: dict[Who, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def sample(self, cycles: int, pids: dict[str, int]) -> None:
        for name, pid in pids.items():
            try:
                rss = psutil.Process(pid).memory_info().rss / 1024
            except psutil.NoSuchProcess:
                continue
            self.samples[name, pid].append((cycles, rss))

    def slopes(self) -> dict[Who, float]:
        """kB a cycle over the second half of the life of each process that has one, dead or alive."""
        found = {}
        for who, points in self.samples.items():
            late = settled(points)
            if len(late) >= MIN_POINTS:
                found[who] = slope(late)
        return found

    def unjudged(self) -> list[Who]:
        """Those that live at the end and have no slope."""
        last = max((points[-1][0] for points in self.samples.values()), default=0)
        judged = self.slopes()
        return [who for who, points in self.samples.items() if points[-1][0] == last and who not in judged]


def settled(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Those of the second half of a life, from when it is warm."""
    born, died = points[0][0], points[-1][0]
    since = born + max((died - born) / 2, WARM_CYCLES)
    return [point for point in points if point[0] >= since]


def slope(points: list[tuple[int, float]]) -> float:
    """Of the line with the least squared distance."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
