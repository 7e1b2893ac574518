"""A store that is full, killed, or replaced by one that is behind: who talks goes on, and can be resumed afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import redis
from contract.store.slow_proxy import SlowProxy
from system.running import RunningSystem, eventually, is_ready
from system.talkers import Talker, go_on, talking
from system.test_store_stopped import refused_open
from system.wire import Event, Wire, append, level, seqs

from duologue.cli.temporary import free_port
from duologue.store.embedded import EmbeddedStore

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

BACKLOG = "duologue_store_journal_backlog_bytes"
SESSIONS = 4
STALL_S = 10.0
GIVEN_UP_S = 3.0
"""By then nobody has a connection any more on which the store would still find what was written to it."""
UNITS = 12
"""Enough for a whole answer."""


def store_failures(system: RunningSystem) -> float:
    return counted(system, "duologue_store_failures_total")


def counted(system: RunningSystem, name: str) -> float:
    lines = system.metrics().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def labelled(system: RunningSystem, name: str, labels: dict[str, str]) -> float:
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = [line for line in system.metrics().splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(pair in line for pair in wanted))


async def comes_back(system: RunningSystem, talker: Talker, after: int) -> tuple[Event, list[int]]:
    """Its socket is cut and the session taken up from this number: the first answer, and the numbers that follow up
    to the end of the next response."""
    await talker.silence()
    await talker.wire.cut()
    created = talker.log[0]
    wire = await Wire.resume(system.url, created["session"]["id"], created["resume_token"], after)
    first = await wire.read()
    if first["type"] == "session.resumed":
        for _ in range(UNITS):
            await wire.send(append(level(6000)))
        await wire.until("response.done")
        await wire.end()
    return first, seqs(wire.log[1:])


async def test_a_full_store_stops_nobody_who_talks_and_is_filled_up_afterwards(tmp_path: Path) -> None:
    with RunningSystem(tmp_path / "home", "--pipelines", "loopback") as system:
        with redis.Redis.from_url(system.state.redis_url) as operator:
            async with talking(system, SESSIONS) as talkers:
                before = seqs(talkers[0].log)[-1]
                operator.config_set("maxmemory", "1")
                try:
                    await go_on(talkers, 2)
                    refused = await refused_open(system)
                    assert refused["code"] == "store_unavailable" and refused["retry_after_ms"] > 0
                    await eventually(lambda: not is_ready(system.port), "readiness tells of the store")
                    assert store_failures(system) > 0
                finally:
                    operator.config_set("maxmemory", str(256 * 1024 * 1024))
                await eventually(lambda: is_ready(system.port), "ready again")
                await go_on(talkers)
                assert not any(talker.failures for talker in talkers)
                await eventually(
                    lambda: counted(system, "duologue_store_journal_backlog_bytes") == 0, "it is filled up"
                )
                first, numbers = await comes_back(system, talkers[0], before)
                assert first["type"] == "session.resumed"
                assert numbers == list(range(before + 1, before + 1 + len(numbers))), "nothing is missing of the outage"


async def test_what_was_said_while_the_store_stood_still_is_in_the_journal_afterwards(tmp_path: Path) -> None:
    with RunningSystem(tmp_path / "home", "--pipelines", "loopback") as system:
        store = next(process.pid for process in system.family() if "valkey" in process.name())
        async with talking(system, SESSIONS) as talkers:
            before = seqs(talkers[0].log)[-1]
            os.kill(store, signal.SIGSTOP)
            try:
                began = asyncio.get_running_loop().time()
                await go_on(talkers, 2)
                assert counted(system, BACKLOG) > 0 and counted(system, "duologue_store_breaker_open_ratio") == 1
                await asyncio.sleep(max(0.0, began + STALL_S - asyncio.get_running_loop().time()))
            finally:
                os.kill(store, signal.SIGCONT)
            await eventually(lambda: is_ready(system.port), "ready again")
            await go_on(talkers)
            assert not any(talker.failures for talker in talkers)
            await eventually(lambda: counted(system, BACKLOG) == 0, "the journal is filled up")
            first, numbers = await comes_back(system, talkers[0], before)
            assert first["type"] == "session.resumed"
            assert numbers == list(range(before + 1, before + 1 + len(numbers)))


async def test_who_leaves_while_the_store_stands_still_misses_nothing_afterwards(tmp_path: Path) -> None:
    """Its gateway gives the shard what it could not journal: whoever claims the journal next would number on above."""
    with RunningSystem(tmp_path / "home", "--pipelines", "loopback") as system:
        store = next(process.pid for process in system.family() if "valkey" in process.name())
        async with talking(system, SESSIONS) as talkers:
            before = [seqs(talker.log)[-1] for talker in talkers]
            os.kill(store, signal.SIGSTOP)
            try:
                began = asyncio.get_running_loop().time()
                await go_on(talkers, 2)
                await asyncio.sleep(max(0.0, began + GIVEN_UP_S - asyncio.get_running_loop().time()))
                leaves, asks = talkers[0], {"outcome": "handed_on"}
                await leaves.silence()
                await leaves.wire.cut()
                await eventually(lambda: labelled(system, "duologue_gateway_kept_events_total", asks) > 0, "handed on")
            finally:
                os.kill(store, signal.SIGCONT)
            await eventually(lambda: is_ready(system.port), "ready again")
            first, numbers = await comes_back(system, leaves, before[0])
            assert first["type"] == "session.resumed" and "items" not in first
            assert numbers == list(range(before[0] + 1, before[0] + 1 + len(numbers)))
            assert numbers[-1] > seqs(leaves.log)[-1]
            assert labelled(system, "duologue_gateway_kept_events_total", {"outcome": "lost"}) == 0


async def test_a_killed_store_comes_back_and_sessions_with_it(tmp_path: Path) -> None:
    with RunningSystem(tmp_path / "home", "--pipelines", "loopback") as system:
        store = next(process.pid for process in system.family() if "valkey" in process.name())
        async with talking(system, SESSIONS) as talkers:
            os.kill(store, signal.SIGKILL)
            await go_on(talkers, 2)
            await eventually(lambda: is_ready(system.port), "ready again")
            await go_on(talkers)
            assert not any(talker.failures for talker in talkers)
            last = seqs(talkers[0].log)[-1]
            first, numbers = await comes_back(system, talkers[0], last)
            assert first["type"] == "session.resumed"
            assert numbers == list(range(last + 1, last + 1 + len(numbers)))


async def test_a_failover_to_a_replica_that_is_behind_costs_at_most_the_replay(tmp_path: Path) -> None:
    """What the replica lacks: seconds of journal and checkpoints of all, and one session altogether."""
    port = free_port(0)
    with EmbeddedStore(tmp_path / "one") as old, EmbeddedStore(tmp_path / "two") as new:
        async with SlowProxy(old.socket_path, 0.0) as address:
            with redis.Redis.from_url(old.url) as first, redis.Redis.from_url(new.url) as second:
                first.config_set("repl-diskless-sync-delay", 0)
                first.config_set("port", port)
                second.replicaof("127.0.0.1", port)
                # In a thread: the address is served by this loop.
                system = RunningSystem(tmp_path / "home", "--pipelines", "loopback", "--redis-url", address.url)
                try:
                    await asyncio.to_thread(system.wait_ready)
                    async with talking(system, SESSIONS) as talkers:
                        assert await asyncio.to_thread(first.wait, 1, 5000) == 1
                        second.replicaof("NO", "ONE")
                        await go_on(talkers)
                        late = await Talker.open(system.url)
                        await go_on([*talkers, late])
                        old.kill()
                        address.lead_to(new.socket_path)
                        address.cut()
                        await go_on([*talkers, late], 2)
                        await eventually(lambda: is_ready(system.port), "ready again")
                        failures = [talker.failures for talker in (*talkers, late) if talker.failures]
                        assert failures == [], system.log.read_text()[-6000:]
                        for talker in (talkers[0], late):
                            last = seqs(talker.log)[-1]
                            answer, numbers = await comes_back(system, talker, last)
                            assert answer["type"] == "session.resumed", answer
                            assert numbers == list(range(last + 1, last + 1 + len(numbers)))
                finally:
                    await asyncio.to_thread(system.__exit__)
