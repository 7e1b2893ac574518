"""`SessionStore`: the input that a model heard, kept for whoever rebuilds its context."""

from __future__ import annotations

import pytest

from duologue.fence import Owner
from duologue.store.memory import MemoryStore
from duologue.store.ports import Done, InputEntry, Owned, Refused, SessionRecord
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

Store = MemoryStore | RedisStore
RECORD = SessionRecord("key-1", "duplex", b"token", "gw-1")


async def opened(store: Store, sid: str) -> Owner:
    owned = await store.sessions.own(sid, incarnation="shard-1", create=RECORD)
    assert isinstance(owned, Owned)
    return owned.owner


def entries(owner: int, *units: int) -> list[InputEntry]:
    return [InputEntry(owner, unit, b"\x00\xff%d" % unit) for unit in units]


async def test_what_was_recorded_is_there_in_order(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    assert await store.sessions.recorded(sid) == ()
    assert await store.sessions.record(sid, owner, entries(1, 0, 1)) == Done()
    assert await store.sessions.record(sid, owner, entries(1, 3)) == Done()
    assert await store.sessions.recorded(sid) == tuple(entries(1, 0, 1, 3))


async def test_a_batch_of_unknown_outcome_may_be_repeated_with_more(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    await store.sessions.record(sid, owner, entries(1, 4, 5))
    await store.sessions.record(sid, owner, entries(1, 4, 5, 6))
    await store.sessions.record(sid, owner, entries(1, 5))
    assert await store.sessions.recorded(sid) == tuple(entries(1, 4, 5, 6))


async def test_what_is_before_the_window_is_forgotten(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    await store.sessions.record(sid, owner, entries(1, *range(10)))
    await store.sessions.record(sid, owner, entries(1, 10), keep=(1, 8))
    assert [entry.unit for entry in await store.sessions.recorded(sid)] == [8, 9, 10]
    await store.sessions.record(sid, owner, (), keep=(1, 10))
    assert [entry.unit for entry in await store.sessions.recorded(sid)] == [10]


async def test_an_heir_records_its_own_units_whatever_the_old_owner_had_heard(store: Store, sid: str) -> None:
    old = await opened(store, sid)
    await store.sessions.record(sid, old, entries(1, *range(6)))
    heir = await store.sessions.own(sid, incarnation="shard-2")
    assert isinstance(heir, Owned)
    assert await store.sessions.record(sid, heir.owner, entries(2, 4, 5)) == Done()
    assert isinstance(await store.sessions.record(sid, old, entries(1, 6)), Refused)
    found = [(entry.owner, entry.unit) for entry in await store.sessions.recorded(sid)]
    assert found == [*((1, unit) for unit in range(6)), (2, 4), (2, 5)]
    await store.sessions.record(sid, heir.owner, (), keep=(2, 5))
    assert [(entry.owner, entry.unit) for entry in await store.sessions.recorded(sid)] == [(2, 5)]


async def test_it_goes_with_the_session(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    await store.sessions.record(sid, owner, entries(1, 0))
    assert await store.sessions.release(sid, owner) == Done()
    assert await store.sessions.recorded(sid) == ()
    refused = await store.sessions.record(sid, owner, entries(1, 1))
    assert isinstance(refused, Refused) and refused.reason == "gone"
    assert await store.sessions.recorded(sid) == ()


async def test_it_is_a_part_of_no_other_session(store: Store, sid: str) -> None:
    owner = await opened(store, sid)
    other = await opened(store, f"{sid}-other")
    await store.sessions.record(sid, owner, entries(1, 0))
    await store.sessions.record(f"{sid}-other", other, entries(1, 7))
    assert [entry.unit for entry in await store.sessions.recorded(sid)] == [0]
