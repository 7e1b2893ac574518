"""What a running system says that it holds: sessions, slots of stages, sockets, and keys of sessions in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis
from system.running import status

SESSION_KEYS = ("s:", "c:", "in:", "j:", "jh:")
DUE_KEYS = "{due}:"
HOLDERS = "{due}:holders"


def held(home: Path) -> dict[str, Any]:
    """By the registrations of its processes, and by the store itself."""
    answer = status("--home", str(home))
    records: dict[str, list[dict[str, Any]]] = {"shard": [], "worker": [], "gateway": []}
    for member in answer["members"]:
        records[member["kind"]].append(member["record"])
    return {
        "sessions": sum(shard["sessions"] for shard in records["shard"]),
        "by_shard": [shard["sessions"] for shard in records["shard"]],
        "slots": sum(stage["slots_used"] for worker in records["worker"] for stage in worker["stages"]),
        "sockets": sum(gateway["sockets"] for gateway in records["gateway"]),
        "keys": session_keys(answer["system"]["redis_url"]),
        "processes": {kind: len(found) for kind, found in records.items()},
    }


def session_keys(url: str) -> list[str]:
    """SCAN: every key that holds something of a session. A session that is over leaves a mark that says only
    that, for a minute, against what comes late."""
    with redis.Redis.from_url(url) as store:
        names = [key.decode() for key in store.scan_iter(count=1000)]
        kept = [name for name in names if name.startswith(SESSION_KEYS) and not is_mark(store, name)]
        for name in names:
            if name.startswith(DUE_KEYS) and name != HOLDERS:
                members: list[Any] = list(store.zrange(name, 0, -1))
                kept += [f"{name} {member.decode()}" for member in members]
        return kept


def is_mark(store: redis.Redis, name: str) -> bool:
    return store.type(name) == b"hash" and bool(store.hexists(name, "x")) and 0 < int(store.ttl(name)) <= 60
