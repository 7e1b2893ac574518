"""Random histories: the in-memory adapter and a real server answer every operation alike."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from duologue.fence import DeliveryId, Owner
from duologue.store.embedded import EmbeddedStore
from duologue.store.journals import JournalLimits
from duologue.store.memory import MemoryStore
from duologue.store.ports import InputEntry, SessionRecord
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

Store = MemoryStore | RedisStore
Operation = Callable[[Store], Awaitable[object]]

HISTORIES, LENGTH = 200, 50
LIMITS = JournalLimits(max_bytes=600)
TOKENS = [b"t%d" % i for i in range(4)]


def operation(r: random.Random, sid: str) -> Operation:
    """One operation with arguments that are often right and often a little wrong."""
    owner = Owner(r.choice((1, 1, 2, 2, 3, 5)), r.choice("ab"))
    gateways = [f"g{i}" for i in range(3) if r.random() < 0.5]
    token, new = r.choice(TOKENS), r.choice(TOKENS)
    asked = {"principal": r.choice("ppq"), "dialect": r.choice("dde")}
    record = SessionRecord("p", "d", token, "g0", extra=r.randbytes(3))
    small, seq, attempt = r.randrange(4), r.randrange(1, 12), r.choice(("", "x", "y"))
    count = r.randrange(1, 5)
    first = r.choice((small * 3 + 1, seq))
    blob = r.randbytes(r.randrange(120))
    batch = [(DeliveryId(owner.number, first + i), blob) for i in range(count)]
    gateway = r.choice(("g0", "g1", "g2"))
    entries = [InputEntry(owner.number, first + i, blob) for i in range(count)]
    keep = r.choice((None, (owner.number, seq)))
    choices: list[Operation] = [
        lambda s: s.sessions.own(sid, incarnation="a", create=record, attempt=attempt),
        lambda s: s.sessions.own(sid, incarnation=owner.incarnation, above=small, attempt=attempt),
        lambda s: s.sessions.checkpoint(sid, owner, small, blob),
        lambda s: s.sessions.read_checkpoint(sid),
        lambda s: s.sessions.activate(
            sid, token_digest=token, new_digest=new, gateway=gateway, live_gateways=gateways, **asked
        ),
        lambda s: s.sessions.examine(sid, token_digest=token, live_gateways=gateways, **asked),
        lambda s: s.sessions.confirm(sid, small),
        lambda s: s.sessions.let_go(sid, small, new_digest=new),
        lambda s: s.sessions.touch(sid, owner),
        lambda s: s.sessions.look_up(sid),
        lambda s: s.sessions.record(sid, owner, entries, keep),
        lambda s: s.sessions.recorded(sid),
        lambda s: s.journal.claim(sid, owner=owner, egress=small, generation=small, claimant=attempt),
        lambda s: s.journal.fence(sid, owner),
        lambda s: s.journal.head(sid),
        lambda s: s.journal.read(sid, first - 1, limit=count),
        lambda s: s.journal.trim(sid, first),
        lambda s: s.journal.touch(sid, owner),
        *[lambda s: s.journal.append(sid, owner, small, first, batch)] * 8,
    ]
    if r.random() < 0.01:
        choices = [
            lambda s: s.sessions.release(sid, owner),
            lambda s: s.journal.release(sid, owner),
        ]
    return r.choice(choices)


@pytest.mark.parametrize("server", ["valkey", "redis_server"])
async def test_histories_agree(server: str, request: pytest.FixtureRequest) -> None:
    embedded: EmbeddedStore = request.getfixturevalue(server)
    ours = MemoryStore(limits=LIMITS)
    real = RedisStore(embedded.url, limits=LIMITS)
    await real.open()
    kinds: set[type] = set()
    for seed in range(HISTORIES):
        r = random.Random(seed)
        sid = f"history-{seed}"
        for step in range(LENGTH):
            op = operation(r, sid)
            here, there = await op(ours), await op(real)
            assert here == there, f"seed {seed}, step {step}"
            kinds.add(type(here))
        assert await ours.journal.read(sid, 0, limit=1000) == await real.journal.read(sid, 0, limit=1000)
    await real.close()
    print(f"{HISTORIES} histories of {LENGTH} operations; results: {sorted(k.__name__ for k in kinds)}")
    assert len(kinds) >= 10
