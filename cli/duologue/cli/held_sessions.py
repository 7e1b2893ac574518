"""Who holds which session: read of the store, with what the shards say of the sessions that they have.

Rule 1. The store decides: a session's own record says whose it is. What a shard notes of what it holds is how sessions
        are found, so one that was opened within the last second may be missing.
Rule 2. A shard that does not answer costs what only it knows (`state`, `lag_s`), not the listing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import httpx
import msgspec

from duologue.model.records import ShardRecord
from duologue.session.opening import StoredExtra
from duologue.store.ports import Activated, Registration, SessionStore
from duologue.store.redis import RedisStore

MAX_LISTED: Final = 100_000
AT_ONCE: Final = 64
ANSWER_S: Final = 5.0

Live = Mapping[str, Any]
"""A session as its shard tells it."""


class HeldSession(msgspec.Struct, frozen=True):
    """One session. Empty: nobody, or not known."""

    session_id: str
    key_id: str
    model: str
    dialect: str
    shard: str
    """Its owner's id; empty: that is not registered (any more)."""
    owner: int
    gateway: str
    """The one that holds the attachment."""
    generation: int
    attached: bool
    state: str
    """open | responding | closing (why) | unknown"""
    age_s: float
    lag_s: float | None
    """How far its model was behind, when that was last measured."""


class ShardAddress(msgspec.Struct, frozen=True):
    """Where a shard answers its operator."""

    id: str
    incarnation: str
    base: str
    token: str

    async def ask(self, method: str, path: str, params: Mapping[str, str] | None = None) -> httpx.Response:
        """Raises httpx.HTTPError."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client:
            return await client.request(method, f"{self.base}{path}", params=params, headers=headers)


def addresses(members: Iterable[Registration]) -> dict[str, ShardAddress]:
    """The shards that are registered, by their incarnation."""
    found: dict[str, ShardAddress] = {}
    for member in members:
        if member.kind != "shard":
            continue
        try:
            record = msgspec.msgpack.decode(member.extra, type=ShardRecord)
        except msgspec.DecodeError:  # of another version
            continue
        if record.metrics_url and record.operator_token:
            base = record.metrics_url.removesuffix("/metrics")
            found[member.incarnation] = ShardAddress(member.id, member.incarnation, base, record.operator_token)
    return found


async def held_sessions(store: RedisStore) -> list[HeldSession]:
    """Every session that anybody holds, oldest first. Raises StoreUnavailable."""
    members = (await store.registry.members()).members
    ids = {member.incarnation: member.id for member in members}
    found = await _look_up(store.sessions, await _noted(store))
    live = await _live(addresses(members).values())
    sessions = [_session(session_id, what, ids, live.get(session_id)) for session_id, what in found]
    return sorted(sessions, key=lambda session: (-session.age_s, session.session_id))


async def _noted(store: RedisStore) -> Sequence[str]:
    holders = await store.holdings.holders()
    noted = [await store.holdings.held_by(holder, MAX_LISTED) for holder in holders]
    return list(dict.fromkeys(session_id for of_one in noted for session_id in of_one))


async def _look_up(sessions: SessionStore, ids: Sequence[str]) -> list[tuple[str, Activated]]:
    found: list[tuple[str, Activated]] = []
    for at in range(0, len(ids), AT_ONCE):
        some = ids[at : at + AT_ONCE]
        answers = await asyncio.gather(*(sessions.look_up(session_id) for session_id in some))
        found += [(one, answer) for one, answer in zip(some, answers, strict=True) if answer is not None]
    return found


async def _live(shards: Iterable[ShardAddress]) -> dict[str, Live]:
    """What the shards say of their sessions, by session."""
    told = await asyncio.gather(*(_sessions_of(shard) for shard in shards))
    return {session["session_id"]: session for of_one in told for session in of_one}


async def _sessions_of(shard: ShardAddress) -> Sequence[Live]:
    try:
        answer = await shard.ask("GET", "/sessions")
    except httpx.HTTPError:
        return ()
    if answer.status_code != 200:
        return ()
    sessions: Sequence[Live] = answer.json()["sessions"]
    return sessions


def _session(session_id: str, found: Activated, ids: Mapping[str, str], live: Live | None) -> HeldSession:
    record = found.record
    try:
        extra = msgspec.msgpack.decode(record.extra, type=StoredExtra)
    except msgspec.DecodeError:  # of another version
        extra = StoredExtra("")
    began = time.time() if extra.beginning is None else extra.beginning.opened_unix_s
    return HeldSession(
        session_id=session_id,
        key_id=record.principal,
        model=extra.pipeline,
        dialect=record.dialect,
        shard=ids.get(found.owner.incarnation, ""),
        owner=found.owner.number,
        gateway=ids.get(record.gateway, ""),
        generation=record.generation,
        attached=record.gateway in ids,
        state="unknown" if live is None else live["state"],
        age_s=round(max(time.time() - began, 0.0), 1),
        lag_s=None if live is None else live["lag_s"],
    )
