"""128 sessions at once over the three loopback models: each is answered, and nothing of any is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from system.conftest import TwoGateways
from system.held import held as system_held
from system.running import eventually
from system.wire import Wire, append, audio, breaks, level, pick, seqs, session_object, transcript

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

COUNTS = {"loopback": 56, "loopback-1s": 24, "loopback-talk": 48}
UNIT_MS = {"loopback": 80, "loopback-1s": 1000, "loopback-talk": 80}
SESSIONS = sum(COUNTS.values())
PROCESSES = {"shard": 2, "worker": 2, "gateway": 2}


async def open_one(url: str, model: str, number: int) -> Wire:
    if model == "loopback-talk":
        return await Wire.open(url, session_object(model, auto=False))
    script = [{"when": "speech"}, {"speak": {"units": 2, "text": f"this is {number}"}}, {"listen": 1}]
    return await Wire.open(url, session_object(model, script=script, audio=f"tone:{400 + number}.3"))


async def converse(wire: Wire, model: str, number: int) -> None:
    """Speak, be answered, and hear nothing of anybody else."""
    spoken_ms = UNIT_MS[model]
    await wire.send(append(level(6000, spoken_ms)))
    if model == "loopback-talk":
        await wire.send({"type": "input_audio_buffer.commit", "response_create": True})
    await wire.until("response.done")
    if model == "loopback-talk":
        assert transcript(wire.log) == f"you spoke for {spoken_ms} ms"
        return
    assert transcript(wire.log) == f"this is {number}"
    sound = audio(wire.log)
    assert len(sound) == 2 * spoken_ms * 48
    assert breaks(sound, float(f"{400 + number}.3")) == []


async def test_all_are_answered_and_nothing_is_left(served: TwoGateways) -> None:
    await eventually(lambda: held(served) == idle(), "nothing is held by the tests before")
    models = [model for model, count in COUNTS.items() for _ in range(count)]
    wires = await asyncio.gather(*(open_one(served.urls[n % 2], model, n) for n, model in enumerate(models)))
    await eventually(lambda: held(served)["sessions"] == SESSIONS, "every session is registered")
    during = held(served)
    assert during["slots"] == 4 * SESSIONS, "four stages each"
    assert during["sockets"] == SESSIONS
    assert len(during["keys"]) >= SESSIONS
    assert min(during["by_shard"]) > 0, "both shards have work"

    await asyncio.gather(*(converse(wire, models[n], n) for n, wire in enumerate(wires)))
    for wire in wires:
        assert len(pick(wire.log, "response.done")) == 1 and pick(wire.log, "error") == []
    await asyncio.gather(*(wire.end() for wire in wires))
    for wire in wires:
        assert seqs(wire.log) == list(range(1, seqs(wire.log)[-1] + 1))
        assert wire.ws.close_code == 1000
    await eventually(lambda: held(served) == idle(), "everything has been given back")


def idle() -> dict[str, Any]:
    return {"sessions": 0, "by_shard": [0, 0], "slots": 0, "sockets": 0, "keys": [], "processes": PROCESSES}


def held(served: TwoGateways) -> dict[str, Any]:
    now = system_held(served.system.home)
    assert now["processes"] == PROCESSES
    return now
