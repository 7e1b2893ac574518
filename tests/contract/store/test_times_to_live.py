"""No script leaves a key for ever: whatever is called, in whatever state the session is, what it wrote expires."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from duologue.fence import DeliveryId, Owner
from duologue.store.embedded import EmbeddedStore
from duologue.store.ports import InputEntry, SessionRecord
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

OWNER = Owner(3, "shard-a")
NEWER = Owner(5, "shard-b")
RECORD = SessionRecord("key", "duplex", b"token", "gw")

Call = Callable[[RedisStore, str, Owner], Awaitable[object]]

CALLS: dict[str, Call] = {
    "own": lambda store, sid, owner: store.sessions.own(sid, incarnation=owner.incarnation),
    "create": lambda store, sid, owner: store.sessions.own(sid, incarnation=owner.incarnation, create=RECORD),
    "hand_over": lambda store, sid, owner: store.sessions.hand_over(sid, owner, "heir"),
    "checkpoint": lambda store, sid, owner: store.sessions.checkpoint(sid, owner, 1, b"state"),
    "record": lambda store, sid, owner: store.sessions.record(sid, owner, [InputEntry(owner.number, 1, b"x")]),
    "activate": lambda store, sid, owner: store.sessions.activate(
        sid,
        token_digest=b"token",
        new_digest=b"new",
        principal="key",
        dialect="duplex",
        gateway="gw-2",
        live_gateways=(),
    ),
    "confirm": lambda store, sid, owner: store.sessions.confirm(sid, 2),
    "let_go": lambda store, sid, owner: store.sessions.let_go(sid, 2),
    "let_go by digest": lambda store, sid, owner: store.sessions.let_go(sid, new_digest=b"late"),
    "touch": lambda store, sid, owner: store.sessions.touch(sid, owner),
    "release": lambda store, sid, owner: store.sessions.release(sid, owner),
    "claim": lambda store, sid, owner: store.journal.claim(sid, owner=owner, generation=1, claimant="c"),
    "fence the journal": lambda store, sid, owner: store.journal.fence(sid, owner),
    "append": lambda store, sid, owner: store.journal.append(sid, owner, 1, 1, [(DeliveryId(owner.number, 1), b"{}")]),
    "trim": lambda store, sid, owner: store.journal.trim(sid, 1),
    "touch the journal": lambda store, sid, owner: store.journal.touch(sid, owner),
    "release the journal": lambda store, sid, owner: store.journal.release(sid, owner),
}


async def _nothing(store: RedisStore, sid: str) -> None:
    """Nobody has heard of it."""


async def _open(store: RedisStore, sid: str) -> None:
    await store.sessions.own(sid, incarnation=OWNER.incarnation, above=OWNER.number - 1, create=RECORD)
    await store.journal.claim(sid, owner=OWNER, generation=1, claimant="c")


async def _over(store: RedisStore, sid: str) -> None:
    await _open(store, sid)
    await store.sessions.release(sid, OWNER)
    await store.journal.release(sid, OWNER)


@pytest.mark.parametrize("owner", [OWNER, NEWER, Owner(1, "older")], ids=["owner", "newer owner", "older owner"])
@pytest.mark.parametrize("before", [_nothing, _open, _over], ids=["unknown", "open", "over"])
async def test_every_key_expires_whatever_was_called(
    valkey: EmbeddedStore, sid: str, before: Callable[[RedisStore, str], Awaitable[None]], owner: Owner
) -> None:
    store = RedisStore(valkey.url)
    await store.open()
    looking = Redis.from_url(valkey.url)
    for name, call in CALLS.items():
        session_id = f"{sid}-{name.replace(' ', '-')}"
        await before(store, session_id)
        await call(store, session_id, owner)
        for key in await looking.keys(f"*{{{session_id}}}"):
            assert await looking.pttl(key) > 0, (name, key)
    await looking.aclose()
    await store.close()
