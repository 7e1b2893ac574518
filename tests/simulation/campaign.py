"""Many worlds: seed ranges in processes of their own, what was found, and how often each hard thing happened."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from simulation.world import Bad, World

HISTORY_LINES = 60
"""How much of a failing world's history is told."""
HANGS_AFTER_S = 60.0
"""Real seconds that one world may take: one that takes longer hangs, and its process tells where."""
COLLECT_EVERY = 10
PORTION = 20
"""Seeds that a process takes at a time."""
HARD = (
    "resume",
    "takeover",
    "fault: gateway killed",
    "fault: slow reader",
    "fault: resume cut",
    "fault: owner replaced",
    "cancel with a batch outstanding",
    "lost reply",
    "late execution",
    "sent while the store was away",
    "overflow",
    "checkpoint held an event",
    "invalidate purged something",
    "credit exhausted",
)
"""What a run must have met, each at least once in ten worlds."""


@dataclass
class Found:
    """Of some worlds: what was wrong, by seed, with the end of its history; and the counts of all."""

    worlds: int = 0
    bad: dict[int, str] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    def add(self, other: Found) -> None:
        self.worlds += other.worlds
        self.bad.update(other.bad)
        self.count += other.count
        self.cpu_s += other.cpu_s


def run_seeds(seeds: Sequence[int], stop_at_first: bool = False) -> Found:
    """These worlds, one after the other, in this process."""
    found = Found()
    began = time.process_time()
    for seed in seeds:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        world = World(seed)
        found.worlds += 1
        try:
            world.run()
        except Bad as bad:
            found.bad[seed] = "\n".join([*list(world.history)[-HISTORY_LINES:], f"seed {seed}: {bad}"])
        found.count += world.count
        if found.bad and stop_at_first:
            break
        if found.worlds % COLLECT_EVERY == 0:
            gc.collect()  # a world is full of circles, most of it in objects that the collector seldom looks at
    faulthandler.cancel_dump_traceback_later()
    found.cpu_s = time.process_time() - began
    return found


def run_kind(make: Callable[[int], World], seeds: Iterable[int], *, whole: bool = False) -> Counter[str]:
    """Worlds of another kind, one after the other: how often each thing happened. Raises Bad with the end of the story
    of the first that fails; `whole`: with all of it."""
    count: Counter[str] = Counter()
    for seed in seeds:
        world = make(seed)
        try:
            world.run()
        except Bad as bad:
            lines = list(world.history)
            raise Bad("\n".join([*(lines if whole else lines[-HISTORY_LINES:]), f"seed {seed}: {bad}"])) from None
        count += world.count
    return count


def _begin() -> None:
    """A worker process: what is imported stays for good, and the collector need not look at it."""
    gc.set_threshold(50_000, 20, 100)
    gc.collect()
    gc.freeze()


def run_parallel(seeds: Sequence[int], processes: int = 0) -> Found:
    """The same in several processes (as many as there are CPUs), which take a few seeds at a time."""
    processes = processes or min(len(seeds), os.cpu_count() or 1)
    portions = [seeds[at : at + PORTION] for at in range(0, len(seeds), PORTION)]
    found = Found()
    # Spawned, not forked: each begins with nothing but its own imports.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin) as pool:
        for part in pool.map(run_seeds, portions):
            found.add(part)
    return found


def report(found: Found, took_s: float) -> str:
    """The lines that a run prints."""
    count = found.count
    lines = [f"{found.worlds} worlds, {count['commands']} client commands, {took_s:.0f} s ({found.cpu_s:.0f} s of CPU)"]
    hard = [f"{name}: {count[name]}" for name in HARD]
    rest = [f"{name}: {n}" for name, n in sorted(count.items()) if name not in HARD and name != "commands"]
    return "\n".join([*lines, *hard, "also " + ", ".join(rest)])
