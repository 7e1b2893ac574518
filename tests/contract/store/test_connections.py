"""What the adapters do when the connection does not: cancellation, delay, silence, death, refusal."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from contract.store.slow_proxy import SlowProxy

from duologue.fence import DeliveryId, Owner
from duologue.store import journal_writer
from duologue.store.embedded import EmbeddedStore
from duologue.store.ports import (
    Appended,
    AppendOutcome,
    Checkpoint,
    Head,
    Owned,
    SessionRecord,
    StoreUnavailable,
    Unknown,
)
from duologue.store.redis import RedisRunner, RedisStore
from duologue.store.scripts import SCRIPTS
from duologue.store.sessions import ScriptedSessions

pytestmark = pytest.mark.contract

ONE = Owner(1, "a")
BATCH = [(DeliveryId(1, 1), b"{}")]


@asynccontextmanager
async def open_store(url: str, timeout_s: float = 2.0) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, timeout_s=timeout_s)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedStore]:
    """A server of this test's own, to stop and to kill."""
    with EmbeddedStore(tmp_path) as server:
        yield server


async def until(true: Callable[[], bool]) -> None:
    """For what the store does by itself and nobody is told of."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def append_once(store: RedisStore, sid: str, first: int = 1) -> AppendOutcome:
    outcome: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
    batch = [(DeliveryId(1, first), b"{}")]
    assert store.appender.submit(sid, ONE, 1, first, batch, outcome.set_result)
    return await asyncio.wait_for(outcome, 10)


async def test_a_cancelled_call_never_poisons_a_connection(valkey: EmbeddedStore) -> None:
    """Each session's checkpoint is its own name; nobody may ever read another's."""
    r = random.Random(11)
    sids = [f"canary-{i}" for i in range(20)]
    cancelled = read = 0
    async with SlowProxy(valkey.socket_path, 0.004) as proxy, open_store(proxy.url, 5.0) as store:
        for sid in sids:
            await store.sessions.own(sid, incarnation="a", create=SessionRecord(sid, "d", b"t", "g"))
            await store.sessions.checkpoint(sid, ONE, 1, sid.encode())

        async def one(sid: str) -> None:
            nonlocal read
            if r.random() < 0.5:
                assert await store.sessions.read_checkpoint(sid) == Checkpoint(1, 1, sid.encode())
            else:
                found = await store.sessions.look_up(sid)
                assert found is not None and found.record.principal == sid
            read += 1

        for _ in range(60):
            tasks = [asyncio.create_task(one(r.choice(sids))) for _ in range(50)]
            for task in tasks:
                if r.random() < 0.4:
                    asyncio.get_running_loop().call_later(r.uniform(0, 0.006), task.cancel)
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                cancelled += isinstance(result, asyncio.CancelledError)
                assert result is None or isinstance(result, asyncio.CancelledError), result
    print(f"{cancelled} calls cancelled, {read} answered")
    assert cancelled > 300 and read > 1000


async def test_batches_through_a_slow_line_are_answered_in_order(valkey: EmbeddedStore) -> None:
    async with SlowProxy(valkey.socket_path, 0.003) as proxy, open_store(proxy.url) as store:
        outcomes: dict[tuple[str, int], AppendOutcome] = {}
        for sid in ("slow-a", "slow-b"):
            await store.journal.claim(sid, owner=ONE)
            for seq in range(1, 101):
                batch = [(DeliveryId(1, seq), sid.encode())]
                store.appender.submit(sid, ONE, 1, seq, batch, partial(outcomes.__setitem__, (sid, seq)))
        await until(lambda: len(outcomes) == 200)
        assert all(outcomes[key] == Appended(key[1], DeliveryId(1, key[1])) for key in outcomes)
        for sid in ("slow-a", "slow-b"):
            entries = (await store.journal.read(sid, 0, limit=100)).entries
            assert len(entries) == 100 and {entry.body for entry in entries} == {sid.encode()}


async def test_a_silent_server_is_unavailable_not_for_ever(own_server: EmbeddedStore) -> None:
    async with open_store(own_server.url, timeout_s=0.3) as store:
        await store.journal.claim("s", owner=ONE)
        pid = own_server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable):
                await store.journal.head("s")
            assert await append_once(store, "s") == Unknown()
            await until(lambda: not store.appender.connected)
            assert not store.appender.submit("s", ONE, 1, 1, BATCH, lambda outcome: None)
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: store.appender.connected)
        assert await append_once(store, "s") == Appended(1, DeliveryId(1, 1))
        assert isinstance(await store.journal.head("s"), Head)


async def test_a_killed_server_comes_back_with_what_it_had(own_server: EmbeddedStore) -> None:
    async with open_store(own_server.url, timeout_s=1.0) as store:
        owned = await store.sessions.own("s", incarnation="a", create=SessionRecord("p", "d", b"t", "g"))
        assert isinstance(owned, Owned)
        await store.journal.claim("s", owner=ONE)
        assert isinstance(await append_once(store, "s"), Appended)
        own_server.stop()  # as asked to: the append-only file is on the disk
        await until(lambda: not store.appender.connected)
        with pytest.raises(StoreUnavailable):
            await store.sessions.look_up("s")
        own_server.start()
        await until(lambda: store.appender.connected)
        assert await append_once(store, "s", first=2) == Appended(2, DeliveryId(1, 2))
        assert store.appender.reconnects == 1
        assert await store.sessions.look_up("s") is not None


async def test_batches_that_were_out_when_the_server_died_are_unknown(own_server: EmbeddedStore) -> None:
    async with open_store(own_server.url) as store:
        outcomes: list[AppendOutcome] = []
        assert own_server.pid is not None
        os.kill(own_server.pid, signal.SIGSTOP)
        for seq in range(1, 6):
            store.appender.submit("s", ONE, 1, seq, BATCH, outcomes.append)
        await asyncio.sleep(0)
        own_server.kill()
        await until(lambda: len(outcomes) == 5)
        assert outcomes == [Unknown()] * 5


async def test_scripts_that_the_server_forgot_are_loaded_again(own_server: EmbeddedStore) -> None:
    async with open_store(own_server.url) as store:
        await store.journal.claim("s", owner=ONE)
        await store._runner._client.script_flush()
        assert isinstance(await store.journal.head("s"), Head)
        await store._runner._client.script_flush()
        assert await append_once(store, "s") == Unknown()
        await until(lambda: store.appender.connected)
        assert isinstance(await append_once(store, "s"), Appended)


async def test_passwords(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path, password="open sesame/@") as server:
        async with open_store(server.url) as store:
            await store.journal.claim("s", owner=ONE)
            assert isinstance(await append_once(store, "s"), Appended)
        wrong = RedisStore(f"unix://:guess@{server.socket_path}")
        with pytest.raises(StoreUnavailable, match="(?i)password"):
            await wrong.open()
        with pytest.raises(StoreUnavailable, match="(?i)password"):
            await wrong.appender.open()
        await wrong.close()


async def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    store = RedisStore(f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(StoreUnavailable):
        await store.open()
    with pytest.raises(StoreUnavailable):
        await store.registry.members()
    await store.close()


async def test_the_writer_is_bounded(valkey: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writer, "MAX_BATCHES", 10)
    async with open_store(valkey.url) as store:
        outcomes: list[AppendOutcome] = []
        taken = [
            store.appender.submit("bounded", ONE, 1, seq, [(DeliveryId(1, seq), b"{}")], outcomes.append)
            for seq in range(1, 13)
        ]
        assert taken == [True] * 10 + [False] * 2
        await until(lambda: len(outcomes) == 10)
        assert await append_once(store, "bounded", first=11) == Appended(11, DeliveryId(1, 11))


async def test_a_callback_that_fails_hurts_no_other(valkey: EmbeddedStore) -> None:
    trouble: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: trouble.append(context))
    async with open_store(valkey.url) as store:

        def fail(outcome: AppendOutcome) -> None:
            raise RuntimeError("planted")

        store.appender.submit("failing", ONE, 1, 1, BATCH, fail)
        assert isinstance(await append_once(store, "failing", first=2), Appended)
    assert [str(context["exception"]) for context in trouble] == ["planted"]


async def test_durable_scripts_wait_for_replicas(valkey: EmbeddedStore) -> None:
    """Without any replica WAIT gives up after its 100 ms; the call succeeds all the same."""
    assert {name for name, script in SCRIPTS.items() if script.durable} == {
        "session/own",
        "session/hand_over",
        "session/activate",
    }
    runner = RedisRunner(valkey.url, replicas=1)
    owned = await ScriptedSessions(runner).own("replicated", incarnation="a", create=SessionRecord("p", "d", b"t", "g"))
    assert isinstance(owned, Owned) and owned.owner == ONE
    await runner.close()
