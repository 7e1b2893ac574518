"""What a gateway says of a store that does not answer, and how soon it refuses what needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from unit.gateway.running import WAIT_S, System

from duologue.gateway import fleet, opening
from duologue.gateway.service import GatewayService
from duologue.store.ports import StoreUnavailable

pytestmark = pytest.mark.unit


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def system() -> AsyncIterator[System]:
    async with System() as system:
        yield system


async def _until(holds: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_silent_store_is_told_after_a_second_and_its_return_at_once(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "BEAT_S", 0.0)
    gateway: GatewayService = await system.gateway()
    clock = gateway.fleet._clock = gateway.gateway.now = Clock()
    gateway.fleet._answered_at = clock.now
    back = asyncio.Event()
    beat = system.store.registry.beat
    asked = asyncio.Event()

    async def silent(*what: Any, **how: Any) -> Any:
        asked.set()
        await back.wait()
        return await beat(*what, **how)

    monkeypatch.setattr(system.store.registry, "beat", silent)
    async with asyncio.timeout(WAIT_S):
        await asked.wait()
    assert gateway.gateway.store_ready(), "it may just be slow"
    clock.now += fleet.PATIENCE_S + 0.01
    assert not gateway.gateway.store_ready() and gateway.unready() == ["the store does not answer"]
    back.set()
    await _until(gateway.gateway.store_ready)


async def test_a_store_that_refuses_is_told_with_the_next_beat(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "BEAT_S", 0.0)
    gateway = await system.gateway()

    async def broken(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(0)
        raise StoreUnavailable("refused")

    monkeypatch.setattr(system.store.registry, "beat", broken)
    await _until(lambda: not gateway.gateway.store_ready())
    assert list(gateway.unready())
    monkeypatch.undo()


async def test_an_open_without_the_store_is_refused_at_once_with_a_time_to_come_again(system: System) -> None:
    gateway = await system.gateway()
    gateway.gateway.store_ready = lambda: False
    client = await system.connect()
    await client.send("session.update", session={"model": "loopback"})
    error = (await client.next())["error"]
    assert error["code"] == "store_unavailable" and error["retry_after_ms"] > 0 and error["retryable"] is True
    assert (await client.closing())[0] == 1013
    assert not system.shard.opened_with, "no shard was asked"


async def test_a_journal_that_does_not_answer_holds_an_open_no_longer_than_its_bound(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "STORE_S", 0.01)
    await system.gateway()

    async def silent(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(system.store.journal, "claim", silent)
    client = await system.connect()
    await client.send("session.update", session={"model": "loopback"})
    error = (await client.next())["error"]
    assert error["code"] == "store_unavailable" and error["retry_after_ms"] > 0
    assert (await client.closing())[0] == 1013


async def test_who_shares_a_port_is_not_ready_before_it_listens_there(system: System) -> None:
    gateway = await system.gateway()
    assert not gateway.unready()
    gateway.awaits_port = True
    assert gateway.unready() == ["this gateway does not listen yet"] and not gateway.cannot_open()
    gateway.port_taken()
    assert not gateway.unready()
