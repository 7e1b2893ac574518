"""Work in a loop of its own, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from duologue.model.loop_thread import LoopThread

pytestmark = pytest.mark.unit


async def where() -> int:
    return threading.get_ident()


def test_work_runs_in_another_thread() -> None:
    thread = LoopThread("test")
    thread.start()
    assert thread.submit(where()).result(10) != threading.get_ident()
    thread.close()
    assert thread.loop.is_closed()


def test_what_still_runs_at_the_end_unwinds_before_the_last_work() -> None:
    thread, told, begun = LoopThread("test"), list[str](), threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("unwound")

    async def last() -> None:
        told.append("last")

    thread.start()
    running = thread.submit(endless())
    assert begun.wait(10)
    thread.close(last())
    assert told == ["unwound", "last"]
    with pytest.raises(CancelledError):
        running.result(0)


def test_one_that_was_never_started_closes_too() -> None:
    thread = LoopThread("test")
    thread.close(asyncio.sleep(0))
    assert thread.loop.is_closed() and not thread.started
