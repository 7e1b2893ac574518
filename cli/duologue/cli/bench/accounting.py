"""CPU of process groups, from the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psutil


def cpu_s(pids: Sequence[int]) -> float:
    """User and system seconds of these processes and of all their children so far."""
    total = 0.0
    for pid in pids:
        try:
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        for member in family:
            try:
                times = member.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
    return total


class CpuMeter:
    """CPU seconds of each group between `start` and `stop`."""

    def __init__(self, groups: Mapping[str, Sequence[int]]) -> None:
        self.groups = groups
        self.used: dict[str, float] = {}
        self._before: dict[str, float] = {}

    def window(self, is_open: bool) -> None:
        now = {name: cpu_s(pids) for name, pids in self.groups.items()}
        if is_open:
            self._before = now
        else:
            self.used = {name: now[name] - self._before[name] for name in now}
