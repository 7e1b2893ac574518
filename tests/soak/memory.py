"""The memory of processes over a run, and the slope of its second half."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import psutil

MIN_POINTS = 4
"""Fewer samples of one process in the second half say nothing of it."""


@dataclass
class Memory:
    """Samples by process: (cycles so far, resident kB). A restarted process is another one."""

    samples: dict[tuple[str, int], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def sample(self, cycles: int, pids: dict[str, int]) -> None:
        for name, pid in pids.items():
            try:
                rss = psutil.Process(pid).memory_info().rss / 1024
            except psutil.NoSuchProcess:
                continue
            self.samples[name, pid].append((cycles, rss))

    def slopes(self, since: int) -> dict[str, float]:
        """kB a cycle of each process that lived from `since` cycles to the end."""
        last = max((cycles for points in self.samples.values() for cycles, _ in points), default=0)
        found = {}
        for (name, _), points in self.samples.items():
            late = [point for point in points if point[0] >= since]
            if points[-1][0] == last and len(late) >= MIN_POINTS:
                found[name] = slope(late)
        return found


def slope(points: list[tuple[int, float]]) -> float:
    """Of the line with the least squared distance."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
