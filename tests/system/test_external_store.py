"""`--redis-url`: the system uses a store that somebody else runs, and leaves it running and clean."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from system.held import session_keys
from system.running import RunningSystem, duologue, eventually, status
from system.test_supervisor import serves
from system.wire import Wire, session_object

from duologue.store.embedded import EmbeddedStore

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


async def test_a_store_that_somebody_else_runs(tmp_path: Path) -> None:
    with EmbeddedStore() as store:
        with RunningSystem(tmp_path, "--pipelines", "loopback", "--redis-url", store.url) as system:
            assert system.state.redis_url == store.url
            assert "valkey" not in {process.name for process in system.state.processes}
            await serves(system.url)
            wire = await Wire.open(system.url, session_object(script=[{"listen": 1}]))
            assert session_keys(store.url)
            members = status("--redis-url", store.url)["members"]
            assert sorted(member["kind"] for member in members).count("shard") == 2
            await wire.end()
            await eventually(lambda: session_keys(store.url) == [], "the session has left the store")
        with redis.Redis.from_url(store.url) as client:
            assert client.ping(), "the store outlives the system"
        await eventually(lambda: not status("--redis-url", store.url)["members"], "nobody is registered any more")


def test_a_store_that_is_gone_is_named() -> None:
    done = duologue("status", "--redis-url", "redis://user:secret@127.0.0.1:1/0")
    assert done.returncode == 2 and "127.0.0.1:1" in done.stderr and "secret" not in done.stderr
