"""Run by `run.py` in a process of its own: worlds from seed FIRST up to LAST until one fails."""

from __future__ import annotations

import sys

from simulation.campaign import run_seeds


def main(first: int, last: int) -> None:
    for seed in range(first, last):
        print(seed, flush=True)  # if this world never ends, the last line tells which it was
        found = run_seeds([seed])
        if found.bad:
            print(found.bad[seed].splitlines()[-1].removeprefix("seed "), flush=True)
            return
    print("clean", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
