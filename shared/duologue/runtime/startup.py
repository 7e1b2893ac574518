"""How a process of ours runs: uvloop, and a garbage collector that leaves start-up objects alone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

_GEN0_THRESHOLD: Final = 50_000
_GEN1_THRESHOLD: Final = 20
_GEN2_THRESHOLD: Final = 100


def freeze_gc() -> None:
    """Call once everything long-lived exists (imports, models, pools): it is never scanned again.

    The hot structs are not tracked at all (`gc=False`), so collections may be rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GEN0_THRESHOLD, _GEN1_THRESHOLD, _GEN2_THRESHOLD)


def run_process(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run `main` on uvloop and answer its exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
