"""What the store's adapters count: each call, failure and refusal once, under the script's name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from contract.store.test_connections import BATCH, ONE, append_once, open_store, until

from duologue.fence import DeliveryId, Owner
from duologue.store import journal_writer, redis
from duologue.store.embedded import EmbeddedStore
from duologue.store.journals import JournalLimits
from duologue.store.ports import Appended, AppendOutcome, SessionRecord, StoreUnavailable
from duologue.store.redis import RedisRunner, RedisStore
from duologue.store.sessions import ScriptedSessions
from duologue.store.stats import BOUNDS_S, Times

pytestmark = pytest.mark.contract


def test_a_time_on_a_bound_is_under_it() -> None:
    times = Times()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[-1], 99.0):
        times.add(seconds)
    assert (times.counts[0], times.counts[-2], times.counts[-1]) == (2, 1, 1)


async def test_calls_and_refusals(valkey: EmbeddedStore) -> None:
    async with open_store(valkey.url) as store:
        record = SessionRecord("p", "d", b"t", "g")
        await store.sessions.own("counted", incarnation="a", create=record)
        await store.sessions.own("counted", incarnation="b", create=record)
        await store.sessions.touch("counted", Owner(0, "z"))
        await store.journal.read("counted", 0)
        assert sum(store.stats.calls["session/own"].counts) == 2
        assert sum(store.stats.calls["journal/read"].counts) == 1
        assert store.stats.refusals == {("session/own", "exists"): 1, ("session/touch", "owner"): 1}
        assert store.stats.failures == {}


async def test_what_is_appended_refused_and_trimmed(valkey: EmbeddedStore) -> None:
    store = RedisStore(valkey.url, limits=JournalLimits(max_bytes=1000))
    await store.open()
    try:
        await store.journal.claim("trimmed", owner=ONE, egress=2)
        for seq in range(1, 11):
            done: list[AppendOutcome] = []
            entry = (DeliveryId(1, seq), b"x" * 300)
            assert store.appender.submit("trimmed", ONE, 2, seq, [entry], done.append)
            await until(lambda done=done: bool(done))  # type: ignore[misc]
            assert isinstance(done[0], Appended)
        await append_once(store, "trimmed", first=1)
        head = await store.journal.head("trimmed")
        stats = store.stats
        assert head is not None
        assert stats.journal_appends == 10
        assert stats.journal_bytes > 3000
        assert stats.journal_trimmed == head.first_seq - 1 > 0
        assert stats.refusals == {("journal/append", "egress"): 1}
        assert 1 <= sum(stats.journal_times.counts) <= 11
    finally:
        await store.close()


async def test_a_lost_connection_fails_what_was_out(own_server_url: str) -> None:
    async with open_store(own_server_url) as store:
        outcomes: list[AppendOutcome] = []
        for seq in (1, 2, 3):
            store.appender.submit("lost", ONE, 1, seq, BATCH, outcomes.append)
        connection = store.appender._connection
        assert connection is not None
        connection.close()
        assert len(outcomes) == 3
        assert store.stats.failures == {("journal/append", "connection"): 3}


@pytest.fixture
def own_server_url(valkey: EmbeddedStore) -> str:
    return valkey.url


async def test_nobody_there_and_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = RedisRunner(f"unix://{tmp_path}/nobody.sock", timeout_s=0.5)
    sessions = ScriptedSessions(runner)
    with pytest.raises(StoreUnavailable):
        await sessions.look_up("s")
    assert runner.stats.failures == {("session/look_up", "connection"): 1}
    monkeypatch.setattr(redis, "_MAX_CALLS", 0)
    with pytest.raises(StoreUnavailable, match="waiting already"):
        await sessions.look_up("s")
    assert runner.stats.failures["session/look_up", "full"] == 1
    await runner.close()


async def test_a_server_that_is_silent_is_a_timeout(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()
        gone.set()

    server = await asyncio.start_unix_server(say_nothing, tmp_path / "silent.sock")
    runner = RedisRunner(f"unix://{tmp_path}/silent.sock", timeout_s=0.2)
    with pytest.raises(StoreUnavailable):
        await ScriptedSessions(runner).look_up("s")
    assert runner.stats.failures == {("session/look_up", "timeout"): 1}
    await runner.close()
    await gone.wait()
    server.close()
    await server.wait_closed()


async def test_batches_that_are_not_taken(valkey: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writer, "MAX_BYTES", 1000)
    async with open_store(valkey.url) as store:
        outcomes: list[AppendOutcome] = []
        entry = (DeliveryId(1, 1), b"x" * 700)
        taken = [store.appender.submit("full", ONE, 1, 1, [entry], outcomes.append) for _ in range(2)]
        assert taken == [True, False]
        assert store.stats.journal_full == 1
