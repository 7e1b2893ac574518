"""A store that is nearly full takes no further session; those that are there, and their clients, go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from unit.gateway.fake_shard import Held
from unit.gateway.running import WAIT_S, System
from websockets.exceptions import InvalidStatus

from duologue.fence import Owner
from duologue.runtime import metrics
from duologue.store.memory_budget import MemoryBudget, ServerMemory

pytestmark = pytest.mark.unit


def fill(system: System, used: int) -> MemoryBudget:
    """So much of 100 is used."""
    memory = system.store.memory = system.store.memory or MemoryBudget(8 * 1024 * 1024)
    memory.heard(ServerMemory(used, 100), [], 1)
    return memory


@pytest.fixture
async def system() -> AsyncIterator[System]:
    async with System() as system:
        fill(system, 10)
        await system.gateway()
        yield system


def refusals() -> float:
    return float(metrics.GATEWAY_REFUSED.labels("store_full")._value.get())


async def test_a_new_client_is_answered_before_its_socket_is_accepted(system: System) -> None:
    fill(system, 90)
    before = refusals()
    with pytest.raises(InvalidStatus) as refusal:
        await system.connect()
    answer = refusal.value.response
    error = json.loads(answer.body or b"")["error"]
    assert (answer.status_code, error["code"]) == (503, "resource_exhausted")
    assert 0 < error["retry_after_ms"] <= 1000 * int(answer.headers["Retry-After"])
    assert refusals() == before + 1
    assert not system.services[0].unready(), "as where there is no place: what is there is served"
    fill(system, 81)
    with pytest.raises(InvalidStatus):
        await system.connect()
    fill(system, 79)
    await system.open()


async def test_one_that_was_accepted_is_refused_at_its_open(system: System) -> None:
    client = await system.connect()
    fill(system, 90)
    before = refusals()
    await client.send("session.update", session={"model": "loopback"})
    error = (await client.next())["error"]
    assert error["code"] == "resource_exhausted" and error["retryable"] and error["retry_after_ms"] > 0
    assert (await client.closing())[0] == 1013
    assert refusals() == before + 1
    assert not system.shard.opened_with, "no shard was asked"


async def test_a_resume_is_served(system: System) -> None:
    client, created = await system.open()
    fill(system, 99)
    await client.ws.close()
    again = await system.resume(created, 1, path="/v1/realtime?duplex=1&autostart=0")
    assert (await again.next())["type"] == "session.resumed"


async def test_a_store_that_does_not_answer_is_told_as_that(system: System) -> None:
    client = await system.connect()
    fill(system, 99)
    system.services[0].gateway.store_ready = lambda: False
    await client.send("session.update", session={"model": "loopback"})
    assert (await client.next())["error"]["code"] == "store_unavailable"


async def test_the_gateway_looks_with_the_number_of_sessions_that_the_shards_tell() -> None:
    async with System() as system:
        fill(system, 10)
        looked: asyncio.Queue[int] = asyncio.Queue()

        async def look(journals: int) -> None:
            looked.put_nowait(journals)

        system.store.look_at_memory = look  # type: ignore[method-assign]
        system.shard.sessions = dict.fromkeys("abcdefg", Held(Owner(1), None))
        system.shard.register()
        await system.gateway()
        assert await asyncio.wait_for(looked.get(), WAIT_S) == 7
