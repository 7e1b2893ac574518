"""Every adapter of the store's ports: lupa in this process, an embedded Valkey, Debian's redis-server."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Iterator

import pytest

from duologue.store.embedded import EmbeddedStore
from duologue.store.journals import JournalLimits
from duologue.store.memory import MemoryStore
from duologue.store.redis import RedisStore

LIMITS = JournalLimits(max_bytes=4096, max_age_s=30.0)

_ids = itertools.count(1)


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedStore]:
    with EmbeddedStore(durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedStore]:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server in PATH (apt-get install redis-server)")
    with EmbeddedStore(durable=False, binary=binary) as server:
        yield server


@pytest.fixture(params=["memory", "valkey", "redis-server"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[MemoryStore | RedisStore]:
    opened: MemoryStore | RedisStore
    if request.param == "memory":
        opened = MemoryStore(limits=LIMITS)
    else:
        server = request.getfixturevalue("valkey" if request.param == "valkey" else "redis_server")
        opened = RedisStore(server.url, limits=LIMITS)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def sid() -> str:
    """A session id that no other test uses."""
    return f"duplex-{next(_ids)}"
