"""`Holdings`, and how a session goes from one shard to another."""

from __future__ import annotations

import pytest

from duologue.fence import Owner
from duologue.store.memory import MemoryStore
from duologue.store.ports import Done, Owned, Refused, SessionRecord
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

Store = MemoryStore | RedisStore
RECORD = SessionRecord("key-1", "duplex", b"\x00token-0", "gw-1", extra=b"\xffpipeline")


async def test_what_is_held_is_listed_until_it_is_left(store: Store, sid: str) -> None:
    me, other = f"inc-a-{sid}", f"inc-b-{sid}"
    await store.holdings.note(me, taken=["one", "two"])
    await store.holdings.note(me, taken=["two"])
    await store.holdings.note(other, taken=["three"])
    assert {me, other} <= set(await store.holdings.holders())
    assert sorted(await store.holdings.held_by(me)) == ["one", "two"]
    assert len(await store.holdings.held_by(me, limit=1)) == 1
    await store.holdings.note(me, taken=["four"], left=["one", "two"])
    assert list(await store.holdings.held_by(me)) == ["four"]
    await store.holdings.note(me, left=["four"])
    await store.holdings.note(other, left=["three"])
    assert list(await store.holdings.held_by(me)) == []
    assert not {me, other} & set(await store.holdings.holders())


async def test_of_two_heirs_one_takes_it(store: Store, sid: str) -> None:
    opened = await store.sessions.own(sid, incarnation="dead", create=RECORD)
    assert isinstance(opened, Owned)
    first = await store.sessions.own(sid, incarnation="heir-1", taken_from="dead", attempt="a")
    assert isinstance(first, Owned) and first.owner == Owner(2, "heir-1")
    second = await store.sessions.own(sid, incarnation="heir-2", taken_from="dead", attempt="b")
    assert second == Refused("owner", Owner(2, "heir-1"))
    again = await store.sessions.own(sid, incarnation="heir-1", taken_from="dead", attempt="a")
    assert again == first
    assert await store.sessions.own("nowhere", incarnation="heir-1", taken_from="dead") == Refused("gone")


async def test_a_session_is_handed_over_by_its_owner_alone(store: Store, sid: str) -> None:
    opened = await store.sessions.own(sid, incarnation="shard-1", create=RECORD)
    assert isinstance(opened, Owned)
    given = await store.sessions.hand_over(sid, opened.owner, "shard-2")
    assert isinstance(given, Owned) and given.owner == Owner(2, "shard-2") and given.record == RECORD
    assert await store.sessions.hand_over(sid, opened.owner, "shard-2") == given
    assert await store.sessions.hand_over(sid, opened.owner, "shard-3") == Refused("owner", given.owner)
    assert await store.sessions.checkpoint(sid, opened.owner, 9, b"late") == Refused("owner", given.owner)
    assert await store.sessions.checkpoint(sid, given.owner, 1, b"heir") == Done()
