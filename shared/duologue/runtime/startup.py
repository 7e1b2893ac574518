"""How a process of ours runs: uvloop, and a garbage collector that leaves start-up objects alone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

_GEN0_THRESHOLD: Final = 1_000
_GEN1_THRESHOLD: Final = 2
_GEN2_THRESHOLD: Final = 1
"""What a session had refers to itself in circles (a socket to its protocol and back), 100 to 200 tracked objects: the
garbage of some 7 sessions is looked for at a time, and what has lived long after some 40, which takes a millisecond
or two. Rarer collections keep the memory of hundreds of sessions that are over, now more and now less of it, and a
process grows by each time that there is more than ever before."""


def freeze_gc() -> None:
    """Call once everything long-lived exists (imports, models, pools): it is never scanned again.

    The hot structs are not tracked at all (`gc=False`): units cause no collections, sessions that come and go do.

    Python puts a full collection off until what has lived long has grown by a quarter since the last one. So there is
    one more behind the freeze: measured by what was frozen, a quarter is the garbage of hundreds of sessions.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
    gc.set_threshold(_GEN0_THRESHOLD, _GEN1_THRESHOLD, _GEN2_THRESHOLD)


def run_process(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run `main` on uvloop and answer its exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
