"""`SecretStore`: what a client secret is good for, and for how long."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from duologue.store.memory import MemoryStore
from duologue.store.ports import ClientSecret, Done, Refused
from duologue.store.redis import RedisStore

pytestmark = pytest.mark.contract

Store = MemoryStore | RedisStore
PRESET = b'{"instructions":"\xc3\xa9\\n"}'


@pytest.fixture
def digest(sid: str) -> bytes:
    return hashlib.sha256(sid.encode()).digest()


async def _gone(store: Store, digest: bytes) -> None:
    async with asyncio.timeout(5):
        while await store.secrets.look_up(digest) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_was_minted_is_found_as_it_was(store: Store, digest: bytes) -> None:
    minted = await store.secrets.mint(digest, principal="key:a", session=PRESET, ttl_s=600, max_session_s=90.5)
    assert (minted.principal, minted.session, minted.max_session_s, minted.fresh) == ("key:a", PRESET, 90.5, True)
    assert await store.secrets.look_up(digest) == minted
    assert await store.secrets.look_up(hashlib.sha256(b"another").digest()) is None


async def test_minted_again_nothing_changes(store: Store, digest: bytes) -> None:
    first = await store.secrets.mint(digest, principal="key:a", session=PRESET, ttl_s=600)
    again = await store.secrets.mint(digest, principal="key:a", session=PRESET, ttl_s=6000)
    assert again.expires_at == first.expires_at
    assert await store.secrets.look_up(digest) == first


async def test_it_is_over_after_its_time(store: Store, digest: bytes) -> None:
    await store.secrets.mint(digest, principal="key:a", session=b"", ttl_s=0.05)
    await _gone(store, digest)
    assert await store.secrets.use(digest, resumable_s=60) == Refused("gone")


async def test_used_it_outlives_its_time_for_resumes_and_opens_nothing(store: Store, digest: bytes) -> None:
    await store.secrets.mint(digest, principal="key:a", session=PRESET, ttl_s=0.1, max_session_s=30)
    assert await store.secrets.use(digest, resumable_s=30) == Done()

    async def kept() -> ClientSecret:
        found = await store.secrets.look_up(digest)
        assert found is not None, "it authenticates resumes"
        return found

    async with asyncio.timeout(5):
        while (await kept()).fresh:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_shorter_use_takes_nothing_from_a_longer_one_or_from_its_own_time(store: Store, digest: bytes) -> None:
    await store.secrets.mint(digest, principal="key:a", session=b"", ttl_s=60)
    await store.secrets.use(digest, resumable_s=0.01)
    await asyncio.sleep(0.05)  # the servers' clock, not ours
    assert await store.secrets.look_up(digest) is not None
    await store.secrets.use(digest, resumable_s=120)
    await store.secrets.use(digest, resumable_s=0.01)
    if isinstance(store, MemoryStore):
        key = b"cs:{%s}" % digest.hex().encode()
        left_ms = store.server.commands.time_to_live_ms(store.server.now_us(), key)
        assert left_ms is not None and left_ms > 100_000
