"""`Registry`: who is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from duologue.store.memory import MemoryStore
from duologue.store.ports import Registration
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

Store = MemoryStore | RedisStore
SHARD = Registration("shard", "a", "inc-1", "ipc:///a", 64, 3, ("loopback",), b"\x00\n\xff")
GATEWAY = Registration("gateway", "g", "inc-2")


@pytest.fixture(autouse=True)
async def signed_off(store: Store) -> AsyncIterator[None]:
    yield
    for who in (await store.registry.members()).members:
        await store.registry.remove(who.kind, who.id, who.incarnation)


async def test_a_beat_renews_and_returns_everybody(store: Store) -> None:
    assert (await store.registry.beat(SHARD, join=True)).members == (SHARD,)
    assert (await store.registry.beat(GATEWAY)).members == (GATEWAY, SHARD)
    busier = msgspec.structs.replace(SHARD, load=9)
    roster = await store.registry.beat(busier)
    assert roster.members == (GATEWAY, busier) and not roster.replaced
    assert (await store.registry.members("shard")).members == (busier,)


async def test_a_new_incarnation_joins_and_the_old_one_is_told(store: Store) -> None:
    await store.registry.beat(SHARD, join=True)
    newer = msgspec.structs.replace(SHARD, incarnation="inc-9")
    assert (await store.registry.beat(newer, join=True)).members == (newer,)
    roster = await store.registry.beat(SHARD)
    assert roster.replaced and roster.members == (newer,)
    await store.registry.remove("shard", "a", "inc-1")
    assert (await store.registry.members()).members == (newer,)
    await store.registry.remove("shard", "a", "inc-9")
    assert (await store.registry.members()).members == ()


async def test_who_does_not_beat_is_gone(store: Store) -> None:
    await store.registry.beat(SHARD, expiry_s=0.05, join=True)
    await store.registry.beat(GATEWAY, expiry_s=60)
    async with asyncio.timeout(5):
        while (await store.registry.members()).members != (GATEWAY,):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await store.registry.beat(GATEWAY)).members == (GATEWAY,)
    assert not (await store.registry.beat(SHARD)).replaced, "an expired one may come back"
