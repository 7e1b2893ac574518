"""What real servers tell of their memory, and journals that are cut shorter while there is little of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import redis

from duologue.fence import DeliveryId, Owner
from duologue.store.embedded import MAX_MEMORY_MB, EmbeddedStore
from duologue.store.journals import JournalLimits
from duologue.store.memory_budget import LEAST_BYTES, MemoryShares
from duologue.store.ports import Appended, AppendOutcome, StoreUnavailable
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

ONE = Owner(1, "a")
MIB = 1024 * 1024
EVENT = b"x" * 50_000


@pytest.fixture
def server() -> Iterator[EmbeddedStore]:
    """One of this test alone: what it holds is the test's."""
    with EmbeddedStore(durable=False) as made:
        yield made


@asynccontextmanager
async def at(url: str, journal_url: str = "", *, shares: MemoryShares | None = None) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, journal_url, limits=JournalLimits(max_bytes=8 * MIB), shares=shares)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def append(store: RedisStore, session_id: str, first: int, count: int) -> Appended:
    outcomes: asyncio.Queue[AppendOutcome] = asyncio.Queue()
    batch = [(DeliveryId(1, first + n), EVENT) for n in range(count)]
    assert store.appender.submit(session_id, ONE, 1, first, batch, outcomes.put_nowait)
    outcome = await asyncio.wait_for(outcomes.get(), 5.0)
    assert isinstance(outcome, Appended)
    return outcome


async def kept(store: RedisStore, session_id: str) -> tuple[int, int]:
    """The oldest seq that is there, and the bytes."""
    head = await store.journal.head(session_id)
    assert head is not None
    return head.first_seq, head.bytes_kept


async def test_an_embedded_server_tells_what_it_holds_and_may_hold(server: EmbeddedStore) -> None:
    async with at(server.url) as store:
        await store.look_at_memory(0)
        before = store.memory.used_ratio
        assert 0 < before < 0.05 and store.stats.memory_used == before
        assert store.stats.journal_limit == store.memory.journal_limit == 8 * MIB
        await append(store, "s", 1, 100)
        await store.look_at_memory(1)
        assert store.memory.used_ratio - before == pytest.approx(100 * len(EVENT) / (MAX_MEMORY_MB * MIB), rel=0.1)


async def test_a_journal_is_cut_with_its_next_batch_once_the_limit_is_lower_and_a_small_one_is_not(
    server: EmbeddedStore,
) -> None:
    async with at(server.url, shares=MemoryShares(budget=8 * MIB)) as store:
        for session_id in ("large", "small"):
            await store.journal.claim(session_id, owner=ONE)
        assert (await append(store, "large", 1, 115)).trimmed == 0
        await append(store, "small", 1, 4)
        await store.look_at_memory(2)
        limit = store.memory.journal_limit
        assert LEAST_BYTES < limit < 115 * len(EVENT) and store.stats.journal_limit == limit
        trimmed = (await append(store, "large", 116, 1)).trimmed
        assert trimmed == store.stats.journal_trimmed > 0
        assert (await append(store, "small", 5, 1)).trimmed == 0
        assert await kept(store, "small") == (1, 5 * len(EVENT))
        first, size = await kept(store, "large")
        assert first == trimmed + 1 and limit - 4 * len(EVENT) < size <= limit
        assert (await store.journal.read("large", trimmed)).entries[0].seq == first
        assert (await store.journal.read("large", trimmed - 1)).gap, "a client whose cursor is older is told of it"
        await store.look_at_memory(2)
        assert not store.memory.full


async def test_full_by_its_own_limit_and_open_again_when_there_is_room(server: EmbeddedStore) -> None:
    with redis.Redis.from_url(server.url) as operator:
        operator.config_set("maxmemory", str(8 * MIB))
        async with at(server.url) as store:
            await store.journal.claim("s", owner=ONE)
            await append(store, "s", 1, 135)
            await store.look_at_memory(1)
            assert store.memory.full and store.memory.used_ratio > 0.85
            await store.journal.release("s", ONE)
            await store.look_at_memory(0)
            while store.memory.used_ratio >= 0.5:  # the server frees what was deleted in a thread of its own
                await store.look_at_memory(0)
            assert not store.memory.full


async def test_a_server_without_a_limit_is_as_large_as_we_say_or_without_end(server: EmbeddedStore) -> None:
    with redis.Redis.from_url(server.url) as operator:
        operator.config_set("maxmemory", "0")
    async with at(server.url) as store, at(server.url, shares=MemoryShares(budget=MIB // 2)) as told:
        await store.look_at_memory(10_000)
        assert (store.memory.used_ratio, store.memory.full, store.memory.journal_limit) == (0.0, False, 8 * MIB)
        await told.look_at_memory(1)
        assert told.memory.full and told.memory.journal_limit == LEAST_BYTES


async def test_of_two_servers_both_count_and_one_that_is_full_of_other_things_cuts_no_journal(
    server: EmbeddedStore,
) -> None:
    with EmbeddedStore(durable=False) as journals:
        async with at(server.url, journals.url) as store:
            with redis.Redis.from_url(server.url) as operator:
                operator.config_set("maxmemory", str(MIB // 2))
            await store.look_at_memory(1)
            assert store.memory.full and store.memory.journal_limit == 8 * MIB
            with redis.Redis.from_url(server.url) as operator:
                operator.config_set("maxmemory", "0")
            with redis.Redis.from_url(journals.url) as operator:
                operator.config_set("maxmemory", str(MIB // 2))
            await store.look_at_memory(1)
            assert store.memory.full and store.memory.journal_limit == LEAST_BYTES


async def test_a_user_that_may_not_ask_has_no_budget_and_everything_else(server: EmbeddedStore) -> None:
    with redis.Redis.from_url(server.url) as operator:
        operator.config_set("maxmemory", str(MIB // 2))
        operator.acl_setuser("duologue", enabled=True, nopass=True, commands=["+@all", "-info"], keys=["*"])
        async with at(server.url.replace("unix://", "unix://duologue:any@")) as store:
            await store.look_at_memory(1)
            assert (store.memory.used_ratio, store.memory.full) == (0.0, False)
            operator.acl_setuser("duologue", commands=["+info"], keys=["*"])
            await store.look_at_memory(1)
            assert store.memory.full


async def test_a_server_that_is_away_changes_nothing(server: EmbeddedStore) -> None:
    async with at(server.url, shares=MemoryShares(budget=MIB // 2)) as store:
        await store.look_at_memory(1)
        before = store.memory.used_ratio
        server.kill()
        with pytest.raises(StoreUnavailable):
            await store.look_at_memory(1)
        assert store.memory.full and store.memory.used_ratio == before
        assert not [script for script, _ in store.stats.failures if "info" in script.lower()]
