"""What is left of the sessions of a run when all of them are over: nothing may be.

Slots of workers and sessions of shards and gateways by `/metrics`, keys by the store. A session that ended leaves a
tombstone for a minute, so that what comes late is refused: that one field is no remainder.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Final

import httpx
from redis.asyncio import Redis
from system.running import RunningSystem

from duologue.cli.status import record_of
from duologue.cli.store_address import store_at
from duologue.model.records import GatewayRecord
from duologue.store.ports import Registration

#: A session whose line was cut behind its close waits 30 s for its client, orphans of a lost shard are freed after 10.
PATIENCE_S: Final = 45.0
GAUGES: Final = (
    "duologue_worker_used_slots",
    "duologue_session_live_sessions",
    "duologue_gateway_attached_sessions",
    "duologue_session_pending_input_bytes",
    "duologue_session_output_buffer_bytes",
    "duologue_gateway_uncovered_bytes",
)
_VALUE: Final = re.compile(r"^(\w+)(?:\{[^}]*\})? (\S+)$", re.M)


async def remains(system: RunningSystem) -> dict[str, float]:
    """What is still there when it has had time to go: metric of a process, or key, and how much of it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        left = {**await _held(system), **await _keys(system)}
        if not left or time.monotonic() >= deadline:
            return left
        await asyncio.sleep(0.5)


async def _held(system: RunningSystem) -> dict[str, float]:
    store = store_at(system.state.redis_url)
    try:
        members = (await store.registry.members()).members
    finally:
        await store.close()
    left: dict[str, float] = {}
    async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
        for member in members:
            text = (await client.get(f"{own_url(member)}/metrics")).text
            for name, value in _VALUE.findall(text):
                if name in GAUGES and float(value):
                    left[f"{member.id} {name}"] = left.get(f"{member.id} {name}", 0.0) + float(value)
    return left


def own_url(member: Registration) -> str:
    """Where this process alone answers `/metrics` and `/drain`."""
    record = record_of(member)
    return record.own_url if isinstance(record, GatewayRecord) else str(record.metrics_url).removesuffix("/metrics")


async def _keys(system: RunningSystem) -> dict[str, float]:
    """Keys of sessions, tombstones aside, by kind; sessions that somebody is still said to hold."""
    left: dict[str, float] = {}
    redis = Redis.from_url(system.state.redis_url)
    try:
        async for key in redis.scan_iter(match="*", count=1000):
            name = key.decode()
            kind = name.partition(":")[0]
            tombstone = kind in ("s", "jh") and await redis.hexists(name, "x")
            if kind in ("s", "c", "in", "jh", "j") and not tombstone:
                left[f"keys {kind}:"] = left.get(f"keys {kind}:", 0.0) + 1
            elif name.startswith("{due}:") and name != "{due}:holders":
                left[f"keys {name}"] = float(await redis.zcard(name))
    finally:
        await redis.aclose()
    return left
