"""The witness: it sleeps 10 ms again and again and writes down by how much it overslept.

What it was not given, nobody on this machine was sure to be given: outages are told less what was witnessed.

    python -m chaos.witness FILE     lines "when excess" (seconds of CLOCK_MONOTONIC, seconds), until SIGTERM
"""

from __future__ import annotations

import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

NAP_S: Final = 0.010
NOTED_S: Final = 0.003


def main(path: Path) -> None:
    going = True

    def stop(*_: object) -> None:
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, stop)
    with path.open("w", buffering=1) as file:
        while going:
            before = time.monotonic()
            time.sleep(NAP_S)
            now = time.monotonic()
            if (excess := now - before - NAP_S) >= NOTED_S:
                file.write(f"{now:.6f} {excess:.6f}\n")


class Stalls:
    """What a witness wrote: how long the machine stood still, between any two moments."""

    def __init__(self, stalls: Sequence[tuple[float, float]]) -> None:
        self._ends = [end for end, _ in stalls]
        self._sums = [0.0, *accumulate(excess for _, excess in stalls)]
        self._excess = [excess for _, excess in stalls]

    @classmethod
    def read(cls, path: Path) -> Stalls:
        rows = (line.split() for line in path.read_text().splitlines())
        return cls([(float(row[0]), float(row[1])) for row in rows if len(row) == 2])

    @property
    def longest_s(self) -> float:
        return max(self._excess, default=0.0)

    def within(self, begin: float, end: float) -> float:
        """Seconds witnessed from `begin` to `end`. A stall counts where it ended, and never for more than was asked."""
        total = self._sums[bisect_left(self._ends, end)] - self._sums[bisect_left(self._ends, begin)]
        at = bisect_left(self._ends, end)
        if at < len(self._ends):  # one that ends later, as far as it reaches in here
            total += max(0.0, end - max(begin, self._ends[at] - self._excess[at]))
        return min(total, end - begin)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
