"""Clients that acknowledge nothing fill the store: it takes no further session, and those that are there go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import redis
from system.running import RunningSystem, eventually, is_ready
from system.talkers import Talker
from system.test_store_faults import comes_back, counted
from system.test_store_stopped import refused_open
from system.wire import Event, Wire, seqs, session_object
from websockets.exceptions import InvalidStatus

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

SMALL = """
pipelines = ["loopback"]
[store]
memory_trim_from = 0.3
memory_refuse_from = 0.4
"""
MAX_MEMORY = 12 * 1024 * 1024
SESSIONS = 16
"""Even with the shortest journals there are they use more than 0.4 of it."""
TALK: list[Event] = [{"listen": 1}, {"speak": {"units": 10, "text": "on and on"}}] * 50
RATIO = "duologue_store_memory_used_ratio"
REFUSED = 'duologue_gateway_refused_total{reason="store_full"}'


async def check_refused(system: RunningSystem) -> None:
    """Whoever comes to open is told before its socket is accepted, and who may be here to resume at its open."""
    with pytest.raises(InvalidStatus) as refusal:
        await Wire.dial(system.url)
    answer = refusal.value.response
    for error in (json.loads(answer.body or b"")["error"], await refused_open(system)):
        assert error["code"] == "resource_exhausted" and error["retry_after_ms"] > 0
    assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0


async def test_sessions_that_acknowledge_nothing_fill_it_so_far_and_no_further(tmp_path: Path) -> None:
    settings = tmp_path / "small.toml"
    settings.write_text(SMALL)
    with RunningSystem(tmp_path / "home", "--config", str(settings)) as system:
        with redis.Redis.from_url(system.state.redis_url) as operator:
            operator.config_set("maxmemory", str(MAX_MEMORY))
            talkers = [await Talker.open(system.url, TALK) for _ in range(SESSIONS)]
            await eventually(lambda: counted(system, RATIO) >= 0.4, "clients that acknowledge nothing fill it")
            await check_refused(system)
            await eventually(
                lambda: counted(system, "duologue_store_journal_trimmed_events_total") > 0, "old events go"
            )
            assert counted(system, "duologue_store_journal_limit_bytes") < 1024 * 1024
            assert counted(system, REFUSED) > 0 and is_ready(system.port)
            heard = [len(talker.log) for talker in talkers]
            await eventually(
                lambda: all(len(talker.log) > before + 100 for talker, before in zip(talkers, heard, strict=True)),
                "those that are there go on",
            )
            for talker in talkers:
                talker.check()
            first, numbers = await comes_back(system, talkers[0], (last := seqs(talkers[0].log)[-1]))
            assert first["type"] == "session.resumed", "who is there may come back"
            assert numbers == list(range(last + 1, last + 1 + len(numbers)))
            told, _ = await comes_back(system, talkers[1], 1)
            assert told["type"] == "session.resync_required", "what is older has left its journal"
            await check_refused(system)
            memory = operator.info("memory")
            assert memory["used_memory_peak"] < MAX_MEMORY
            assert not counted(system, 'duologue_store_failures_total{kind="server"')
            await asyncio.gather(*(talker.stop() for talker in talkers[2:]))
            await eventually(lambda: counted(system, RATIO) < 0.35, "there is room again")
            await (await Wire.open(system.url, session_object())).end()
