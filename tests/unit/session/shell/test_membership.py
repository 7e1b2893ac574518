"""The shard's beats: on a grid, and at once when somebody asks about a shard that may have died just now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duologue.session.membership import HURRY_S, Membership
from duologue.store.memory import MemoryStore
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit

ME = Registration("shard", "me", "me-1")


@asynccontextmanager
async def beating(beat_s: float) -> AsyncIterator[tuple[Membership, asyncio.Queue[float]]]:
    beats: asyncio.Queue[float] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    membership = Membership(
        MemoryStore().registry, lambda: ME, lambda members: beats.put_nowait(loop.time()), beat_s=beat_s
    )
    running = asyncio.create_task(membership.run())
    try:
        yield membership, beats
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_it_beats_by_itself() -> None:
    async with beating(0.01) as (_, beats), asyncio.timeout(5):
        for _ in range(3):
            await beats.get()


async def test_who_is_in_a_hurry_does_not_wait_for_the_next_beat_and_does_not_flood_the_store() -> None:
    async with beating(3600) as (membership, beats), asyncio.timeout(5):
        membership.hurry()
        first = await beats.get()
        for _ in range(5):
            membership.hurry()
        assert await beats.get() - first >= HURRY_S * 0.99
        assert beats.empty()
