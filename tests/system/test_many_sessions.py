"""128 sessions at once over the three loopback models: each is answered, and nothing of any is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from system.conftest import TwoGateways
from system.running import eventually, status
from system.wire import Wire, append, audio, breaks, level, pick, seqs, session_object, transcript

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

COUNTS = {"loopback": 56, "loopback-1s": 24, "loopback-talk": 48}
UNIT_MS = {"loopback": 80, "loopback-1s": 1000, "loopback-talk": 80}
SESSIONS = sum(COUNTS.values())
SESSION_KEYS = ("s:", "c:", "in:", "j:", "jh:")


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
    return {"sessions": 0, "by_shard": [0, 0], "slots": 0, "sockets": 0, "keys": []}


def held(served: TwoGateways) -> dict[str, Any]:
    """What the system says it holds: its registrations, and the keys of sessions in the store."""
    answer = status("--home", str(served.system.home))
    shards = [member["record"] for member in answer["members"] if member["kind"] == "shard"]
    workers = [member["record"] for member in answer["members"] if member["kind"] == "worker"]
    gateways = [member["record"] for member in answer["members"] if member["kind"] == "gateway"]
    assert (len(shards), len(workers), len(gateways)) == (2, 2, 2)
    return {
        "sessions": sum(shard["sessions"] for shard in shards),
        "by_shard": [shard["sessions"] for shard in shards],
        "slots": sum(stage["slots_used"] for worker in workers for stage in worker["stages"]),
        "sockets": sum(gateway["sockets"] for gateway in gateways),
        "keys": session_keys(answer["system"]["redis_url"]),
    }


def session_keys(url: str) -> list[str]:
    """SCAN: every key that holds something of a session. A session that is over leaves a mark that says only
    that, for a minute, against what comes late."""
    with redis.Redis.from_url(url) as store:
        names = [key.decode() for key in store.scan_iter(count=1000)]
        held = [name for name in names if name.startswith(SESSION_KEYS)]
        return [name for name in held if not is_mark(store, name)]


def is_mark(store: redis.Redis, name: str) -> bool:
    return store.type(name) == b"hash" and bool(store.hexists(name, "x")) and 0 < int(store.ttl(name)) <= 60
