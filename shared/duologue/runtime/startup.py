"""How a process of ours runs: uvloop, and a garbage collector that leaves start-up objects alone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

_GEN0_THRESHOLD: Final = 5_000
_GEN1_THRESHOLD: Final = 5
_GEN2_THRESHOLD: Final = 2
"""What a session had refers to itself in circles (a socket to its protocol and back), 100 to 300 tracked objects: the
garbage of some 25 sessions is looked for at a time, which takes less than a millisecond, and what has lived long
after some 300: a few milliseconds. Rarer collections keep the memory of thousands of sessions that are over."""


def freeze_gc() -> None:
    """Call once everything long-lived exists (imports, models, pools): it is never scanned again.

    The hot structs are not tracked at all (`gc=False`): units cause no collections, sessions that come and go do.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GEN0_THRESHOLD, _GEN1_THRESHOLD, _GEN2_THRESHOLD)


def run_process(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run `main` on uvloop and answer its exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
