"""The scripts as a cluster and an old server need them: one slot, Redis 7.0, only the keys they are given."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from contract.store.test_histories import LENGTH, operation
from redis.crc import key_slot

from duologue.fence import DeliveryId, Owner
from duologue.store.journals import JournalLimits
from duologue.store.memory import MemoryServer, MemoryStore
from duologue.store.ports import Registration, SessionRecord
from duologue.store.scripts import REGISTRY_KEYS, SCRIPTS, Arg, Reply, Script, holding_keys, journal_keys, session_keys

pytestmark = pytest.mark.contract

REDIS_7_0 = {
    *("HMGET", "HGET", "HSET", "HDEL", "DEL", "PEXPIRE", "PTTL", "TIME"),
    *("XADD", "XRANGE", "XTRIM", "ZADD", "ZREM", "ZRANGEBYSCORE"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_only_commands_of_redis_7_0(name: str) -> None:
    source = SCRIPTS[name].source.decode()
    used = set(re.findall(r"redis\.p?call\('(\w+)'", source))
    assert used and used <= REDIS_7_0
    assert len(re.findall(r"redis\.", source)) == len(re.findall(r"redis\.call\('[A-Z]+'", source))


@pytest.mark.parametrize(
    "keys", [session_keys("duplex-7"), journal_keys("duplex-7"), holding_keys("i-7"), REGISTRY_KEYS]
)
def test_keys_share_a_slot(keys: tuple[str, ...]) -> None:
    assert len({key_slot(key.encode()) for key in keys}) == 1


def test_session_and_journal_keys_are_apart() -> None:
    """They may live on two servers."""
    assert not set(session_keys("s")) & set(journal_keys("s"))
    for name, script in SCRIPTS.items():
        assert (b"KEYS: s:" in script.source) == name.startswith("session/")
        assert (b"KEYS: jh:" in script.source) == name.startswith("journal/")


class Watched(MemoryServer):
    """Fails when a command names a key that the script was not given, or leaves one without an expiry."""

    allowed: set[bytes]

    def evaluate(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        self.allowed = {key.encode() for key in keys}
        reply = super().evaluate(script, keys, args)
        for key in self.commands.keys(self.now_us()):
            assert self.commands.time_to_live_ms(self.now_us(), key) is not None, (script.name, key)
        return reply

    def _call(self, name: bytes, *args: Any) -> Any:
        if name != b"TIME":
            named = args if name == b"DEL" else args[:1]
            assert set(named) <= self.allowed
        return super()._call(name, *args)


async def test_only_the_keys_given_and_each_expires() -> None:
    server = Watched()
    store = MemoryStore(server=server)
    for seed in range(40):
        r = random.Random(seed)
        for _ in range(LENGTH):
            await operation(r, f"watched-{seed}")(store)
    await store.registry.beat(Registration("shard", "a", "i"))


async def test_keys_expire_and_age_is_the_servers() -> None:
    now = [1000.0]
    store = MemoryStore(lambda: now[0], limits=JournalLimits(ttl_s=100, max_age_s=60), session_ttl_s=100)
    owner = Owner(1, "a")
    await store.sessions.own("s", incarnation="a", create=SessionRecord("p", "d", b"t", "g"))
    await store.journal.claim("s", owner=owner)
    for n in range(1, 91):
        now[0] += 1.0
        await store.journal.append("s", owner, 1, n, [(DeliveryId(1, n), b"x")])
        await store.sessions.touch("s", owner)
    head = await store.journal.head("s")
    assert head is not None and 90 - 62 <= head.first_seq <= 90 - 59
    now[0] += 87.0
    assert await store.journal.head("s") is not None
    now[0] += 12.0
    assert await store.sessions.look_up("s") is not None
    now[0] += 2.0
    assert await store.sessions.look_up("s") is None
    assert await store.journal.head("s") is None
    assert store.server.commands.keys(store.server.now_us()) == []
