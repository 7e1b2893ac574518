"""What the promises of the store are worth when the server is full, goes back in time, changes places or is cut off.
Real servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from urllib.parse import quote

import pytest
import redis
from contract.store.slow_proxy import SlowProxy
from contract.store.test_connections import append_once, open_store, until

from duologue.cli.certificates import local_certificate
from duologue.cli.temporary import free_port
from duologue.fence import DeliveryId, Owner
from duologue.store.embedded import EmbeddedStore
from duologue.store.ports import (
    Appended,
    AppendOutcome,
    Checkpoint,
    Done,
    Entry,
    JournalRefused,
    Owned,
    Refused,
    Registration,
    SessionRecord,
    StoreUnavailable,
    Unknown,
)
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

ONE, TWO = Owner(1, "a"), Owner(2, "b")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path / "one") as made:
        yield made


def at(server: EmbeddedStore) -> redis.Redis:
    """An operator's connection."""
    return redis.Redis.from_url(server.url)


async def opened(store: RedisStore, sid: str) -> None:
    owned = await store.sessions.own(sid, incarnation="a", create=SessionRecord("p", "d", b"t", "g"))
    assert isinstance(owned, Owned) and owned.owner == ONE
    await store.journal.claim(sid, owner=ONE)


def entries(first: int, last: int, owner: int = 1) -> list[Entry]:
    return [(DeliveryId(owner, seq), str(seq).encode()) for seq in range(first, last + 1)]


async def append(store: RedisStore, sid: str, owner: Owner, first: int, last: int) -> AppendOutcome | JournalRefused:
    return await store.journal.append(sid, owner, 1, first, entries(first, last, owner.number))


# -- full ------------------------------------------------------------------------------------------------------


async def test_a_full_server_refuses_writes_answers_reads_and_goes_on_when_there_is_room(server: EmbeddedStore) -> None:
    async with open_store(server.url) as store:
        await opened(store, "s")
        assert isinstance(await append_once(store, "s"), Appended)
        with at(server) as operator:
            operator.config_set("maxmemory", "1")
            with pytest.raises(StoreUnavailable, match="maxmemory"):
                await store.sessions.own("t", incarnation="a", create=SessionRecord("p", "d", b"t", "g"))
            with pytest.raises(StoreUnavailable, match="maxmemory"):
                await store.sessions.checkpoint("s", ONE, 1, b"blob")
            assert await append_once(store, "s", first=2) == Unknown()
            assert store.stats.failures["session/own", "server"] == 1
            assert (await store.journal.read("s", 0)).entries[0].seq == 1, "what is there can still be resumed from"
            assert await store.sessions.look_up("t") is None, "nothing is half written"
            operator.config_set("maxmemory", "0")
        await until(lambda: store.appender.connected)
        assert await append_once(store, "s", first=2) == Appended(2, DeliveryId(1, 2))
        assert await store.sessions.checkpoint("s", ONE, 1, b"blob") == Done()


# -- back in time ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def failed_over(tmp_path: Path, server: EmbeddedStore) -> AsyncIterator[tuple[SlowProxy, EmbeddedStore]]:
    """An address, and a replica of the server that it leads to, which has all so far."""
    port = free_port(0)
    with EmbeddedStore(tmp_path / "two") as replica, at(server) as first, at(replica) as second:
        first.config_set("repl-diskless-sync-delay", 0)
        first.config_set("port", port)
        second.replicaof("127.0.0.1", port)
        await until(lambda: second.info("replication")["master_link_status"] == "up")
        async with SlowProxy(server.socket_path, 0.0) as address:
            yield address, replica


async def caught_up(server: EmbeddedStore) -> None:
    with at(server) as operator:
        assert await asyncio.to_thread(operator.wait, 1, 5000) == 1


def promote(replica: EmbeddedStore) -> None:
    """From here on what the old server is told is lost."""
    with at(replica) as operator:
        operator.replicaof("NO", "ONE")


async def test_a_replica_that_is_behind_heals_forward(tmp_path: Path, server: EmbeddedStore) -> None:
    """It lacks the last ten entries, three checkpoints and a change of owner; whoever is alive goes on."""
    async with failed_over(tmp_path, server) as (address, replica), open_store(address.url) as store:
        await opened(store, "s")
        assert isinstance(await append(store, "s", ONE, 1, 20), Appended)
        assert await store.sessions.checkpoint("s", ONE, 5, b"five") == Done()
        await caught_up(server)
        promote(replica)
        heir = await store.sessions.own("s", incarnation="b", above=1)
        assert isinstance(heir, Owned) and heir.owner == TWO
        assert isinstance(await append(store, "s", TWO, 21, 30), Appended)
        assert await store.sessions.checkpoint("s", TWO, 8, b"eight") == Done()
        server.kill()
        address.lead_to(replica.socket_path)
        address.cut()
        await until(lambda: store.appender.connected)

        assert await store.sessions.read_checkpoint("s") == Checkpoint(1, 5, b"five"), "it has gone back in time"
        assert await append(store, "s", TWO, 31, 32) == Appended(32, DeliveryId(2, 32))
        assert await store.sessions.checkpoint("s", TWO, 9, b"nine") == Done()
        assert await store.sessions.read_checkpoint("s") == Checkpoint(2, 9, b"nine")

        late = await append(store, "s", ONE, 21, 21)
        assert isinstance(late, JournalRefused) and late.reason == "owner", "the old owner is refused here as well"
        refused = await store.sessions.checkpoint("s", ONE, 10, b"late")
        assert isinstance(refused, Refused) and refused.reason == "owner"

        across = await store.journal.read("s", 20)
        assert across.gap and not across.entries and across.head_seq == 32, "who lacks what was lost is told"
        assert [entry.seq for entry in (await store.journal.read("s", 30)).entries] == [31, 32]
        assert [entry.seq for entry in (await store.journal.read("s", 15)).entries] == [16, 17, 18, 19, 20]


async def test_batches_whose_outcome_a_failover_hides_are_repeated_without_harm(
    tmp_path: Path, server: EmbeddedStore
) -> None:
    async with failed_over(tmp_path, server) as (address, replica), open_store(address.url) as store:
        await opened(store, "s")
        assert isinstance(await append(store, "s", ONE, 1, 20), Appended)
        await caught_up(server)
        promote(replica)
        assert isinstance(await append(store, "s", ONE, 21, 24), Appended)
        address.lead_to(replica.socket_path)
        address.cut()
        assert await append(store, "s", ONE, 17, 26) == Appended(26, DeliveryId(1, 26))
        everything = (await store.journal.read("s", 0)).entries
        assert [(entry.seq, entry.body) for entry in everything] == [(n, str(n).encode()) for n in range(1, 27)]


async def test_a_server_that_was_made_a_replica_is_left(tmp_path: Path, server: EmbeddedStore) -> None:
    """It answers, so its connections would stay for ever; the address leads elsewhere by now."""
    async with failed_over(tmp_path, server) as (address, replica), open_store(address.url) as store:
        await opened(store, "s")
        assert await append_once(store, "s") == Appended(1, DeliveryId(1, 1))
        await caught_up(server)
        promote(replica)
        with at(server) as demoted:
            demoted.replicaof("127.0.0.1", 1)
        address.lead_to(replica.socket_path)
        with pytest.raises(StoreUnavailable, match="(?i)read.?only"):
            await store.sessions.checkpoint("s", ONE, 1, b"blob")
        assert await store.sessions.checkpoint("s", ONE, 1, b"blob") == Done()
        assert await append_once(store, "s", first=2) == Unknown()
        await until(lambda: store.appender.connected)
        assert await append_once(store, "s", first=2) == Appended(2, DeliveryId(1, 2))


async def test_a_killed_server_has_what_was_written_a_second_before(tmp_path: Path, server: EmbeddedStore) -> None:
    async with open_store(server.url) as store:
        await opened(store, "s")
        assert isinstance(await append(store, "s", ONE, 1, 5), Appended)
        with at(server) as operator:  # no sleep: the file itself says when it is on the disk
            await until(lambda: int(operator.info("persistence")["aof_pending_bio_fsync"]) == 0)
            await asyncio.to_thread(operator.execute_command, "WAITAOF", 1, 0, 5000)
        server.kill()
        server.start()
        await until(lambda: store.appender.connected)
        assert [entry.seq for entry in (await store.journal.read("s", 0)).entries] == [1, 2, 3, 4, 5]
        assert await append_once(store, "s", first=6) == Appended(6, DeliveryId(1, 6))
        beat = await store.registry.beat(Registration("shard", "shard-1", "a", "ipc:///x"), join=True)
        assert [member.id for member in beat.members] == ["shard-1"], "scripts and all"


# -- cut off ---------------------------------------------------------------------------------------------------


async def test_res_11_no_call_ever_reads_the_reply_of_another_however_it_is_cut(server: EmbeddedStore) -> None:
    """Callers are cancelled and connections die between command and reply; each session's checkpoint is its name."""
    r = random.Random(5)
    sids = [f"canary-{number}" for number in range(20)]
    counts = {"read": 0, "cancelled": 0, "unavailable": 0}
    async with SlowProxy(server.socket_path, 0.003, seed=5) as proxy, open_store(proxy.url, 5.0) as store:
        for sid in sids:
            await opened(store, sid)
            await store.sessions.checkpoint(sid, ONE, 1, sid.encode())

        async def one(sid: str) -> None:
            try:
                if r.random() < 0.5:
                    assert await store.sessions.read_checkpoint(sid) == Checkpoint(1, 1, sid.encode())
                else:
                    found = await store.journal.head(sid)
                    assert found is not None and found.last_seq == 0 and found.owner == ONE
            except StoreUnavailable:
                counts["unavailable"] += 1
            else:
                counts["read"] += 1

        for _ in range(60):
            tasks = [asyncio.create_task(one(r.choice(sids))) for _ in range(40)]
            for task in tasks:
                if r.random() < 0.3:
                    asyncio.get_running_loop().call_later(r.uniform(0, 0.01), task.cancel)
            asyncio.get_running_loop().call_later(r.uniform(0, 0.01), proxy.cut, 0.5)
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                counts["cancelled"] += isinstance(result, asyncio.CancelledError)
                assert result is None or isinstance(result, asyncio.CancelledError), result
    assert counts["read"] > 500 and counts["cancelled"] > 100 and proxy.connections > 40, (counts, proxy.connections)


# -- password and TLS ------------------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path: Path) -> tuple[SSLContext, Path]:
    """A server's context, and the authority that clients are to trust."""
    files = local_certificate(tmp_path / "tls", ["127.0.0.1"], datetime.now(UTC))
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    return context, files.ca


async def test_an_acl_user_over_tls(server: EmbeddedStore, tls: tuple[SSLContext, Path]) -> None:
    context, ca = tls
    password = "p@ss/word#1"
    with at(server) as operator:
        operator.acl_setuser("duologue", enabled=True, passwords=[f"+{password}"], commands=["+@all"], keys=["*"])
        operator.acl_setuser("default", enabled=False)
    async with SlowProxy(server.socket_path, 0.0, tls=context) as proxy:
        who = f"duologue:{quote(password, safe='')}@"
        url = f"rediss://{who}127.0.0.1:{proxy.port}/0?ssl_ca_certs={quote(str(ca))}"
        async with open_store(url) as store:
            await opened(store, "s")
            assert await append_once(store, "s") == Appended(1, DeliveryId(1, 1))
            assert [entry.seq for entry in (await store.journal.read("s", 0)).entries] == [1]
        for wrong in (
            url.replace("duologue:", "stranger:"),
            f"rediss://{who}127.0.0.1:{proxy.port}/0",  # an authority that nobody trusts
            f"redis://{who}127.0.0.1:{proxy.port}/0",
        ):
            store = RedisStore(wrong, timeout_s=1.0)
            with pytest.raises(StoreUnavailable) as refused:
                await store.open()
            with pytest.raises(StoreUnavailable):
                await store.appender.open()
            assert password not in str(refused.value) and quote(password, safe="") not in str(refused.value)
            await store.close()
        unchecked = url.partition("?")[0] + "?ssl_cert_reqs=none&ssl_check_hostname=false"
        async with open_store(unchecked) as store:
            assert await append_once(store, "s", first=2) == Appended(2, DeliveryId(1, 2))
