"""A store that stops answering: the gateway says so, and an open is told soon when to come again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from system.running import RunningSystem, eventually, is_ready
from system.wire import Wire, session_object

pytestmark = pytest.mark.system


async def test_a_stopped_store_is_told_by_readyz_and_refuses_opens_until_it_is_back(tmp_path: Path) -> None:
    with RunningSystem(tmp_path / "home", "--pipelines", "loopback") as system:
        store = next(process.pid for process in system.family() if "valkey" in process.name())
        os.kill(store, signal.SIGSTOP)
        try:
            first = await refused_open(system)
            assert first["code"] == "store_unavailable" and first["retry_after_ms"] > 0
            await eventually(lambda: not is_ready(system.port), "readiness tells of the store")
            known = await refused_open(system)
            assert known["code"] == "store_unavailable" and known["message"] == "the store does not answer"
        finally:
            os.kill(store, signal.SIGCONT)
        await eventually(lambda: is_ready(system.port), "ready again")
        wire = await Wire.open(system.url, session_object())
        await wire.end()


async def refused_open(system: RunningSystem) -> dict[str, Any]:
    wire = await Wire.dial(system.url, autostart="0")
    await wire.send({"type": "session.update", "session": session_object()})
    event = await wire.read()
    await wire.ws.wait_closed()
    assert event["type"] == "error" and wire.ws.close_code == 1013, event
    error: dict[str, Any] = event["error"]
    return error
