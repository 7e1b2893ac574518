"""Signals, loop lag, garbage collector and uvloop: how a process of ours runs."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time

import pytest
import uvloop

from duologue.runtime.loop_lag import LoopLagProbe, cpu_seconds, rss_bytes
from duologue.runtime.signals import StopSignals
from duologue.runtime.startup import freeze_gc, run_process

pytestmark = pytest.mark.unit


async def test_the_first_signal_asks_and_the_second_insists() -> None:
    insisted: list[bool] = []
    async with StopSignals(lambda: insisted.append(True)) as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        assert (stop.received, insisted) == (signal.SIGTERM, [])
        again = asyncio.Event()
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        asyncio.get_running_loop().call_later(0.01, again.set)
        await again.wait()
        assert insisted == [True]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


async def test_a_process_may_ask_itself() -> None:
    async with StopSignals() as stop:
        stop.ask()
        await stop.wait()
        assert stop.asked and stop.received is None


async def test_lag_is_observed_and_a_stall_is_told() -> None:
    lags: list[float] = []
    stalled = asyncio.get_running_loop().create_future()
    probe = LoopLagProbe(lags.append, on_stall=stalled.set_result, interval_s=0.001, stall_s=0.05)
    probe.start()
    asyncio.get_running_loop().call_soon(time.sleep, 0.1)
    assert await stalled > 0.05
    probe.stop()
    probe.stop()
    assert max(lags) > 0.05
    assert min(lags) >= 0


def test_memory_and_cpu_are_told() -> None:
    assert rss_bytes() > 1_000_000
    assert cpu_seconds() > 0


def test_memory_is_told_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.runtime.loop_lag._STATM", "/nowhere")
    assert rss_bytes() > 1_000_000


def test_what_exists_at_start_is_frozen() -> None:
    thresholds = gc.get_threshold()
    try:
        freeze_gc()
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[0] >= 1000
        assert gc.get_threshold()[2] <= 10, "what a long session leaves in circles is found in the end"
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def test_the_first_full_collection_does_not_wait_for_a_quarter_of_what_is_frozen() -> None:
    class Circle:
        def __init__(self) -> None:
            self.own = self

    thresholds, ballast = gc.get_threshold(), [Circle() for _ in range(100_000)]
    try:
        freeze_gc()
        first, second, third = gc.get_threshold()
        before = gc.get_stats()[2]["collections"]
        for _ in range((first + 1) * (second + 2) * (third + 2)):
            Circle()
        assert gc.get_stats()[2]["collections"] > before
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        ballast.clear()
        gc.collect()


def test_a_process_runs_on_uvloop_and_answers_its_code() -> None:
    async def main() -> int:
        return 3 if isinstance(asyncio.get_running_loop(), uvloop.Loop) else 0

    assert run_process(main) == 3
