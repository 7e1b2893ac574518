"""How many peers an endpoint takes, and how many names its counters tell apart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from duologue.bus import endpoint
from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.memory import MemoryHub
from duologue.bus.messages import AnyMessage
from duologue.bus.stats import MAX_NAMES, OTHER, BusStats

pytestmark = pytest.mark.unit


class Listener(LinkHandler):
    def __init__(self) -> None:
        self.ready: list[str] = []
        self.moved = asyncio.Event()

    def on_ready(self, link: Link) -> None:
        self.ready.append(link.peer.name)
        self.moved.set()

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        pass

    def on_credit(self, link: Link) -> None:
        pass

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        self.moved.set()


async def until(true: Callable[[], bool]) -> None:
    """For what happens in later turns of the loop."""
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_full_endpoint_refuses_strangers_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_PEERS", 2)
    hub, here = MemoryHub(), Listener()
    listening = hub.endpoint(Peer("shard", "shard", "i"), here, "memory://shard")
    await listening.start()
    dialling = [hub.endpoint(Peer(f"g{n}", "gateway", f"j{n}"), Listener()) for n in range(3)]
    for number, there in enumerate(dialling):
        await there.start()
        there.dial("shard", "memory://shard")
        if number < 2:
            await until(lambda number=number: len(here.ready) == number + 1)  # type: ignore[misc]
    await until(lambda: listening.stats.hellos_refused.get("full", 0) > 0)
    assert here.ready == ["g0", "g1"]
    for there in (*dialling, listening):
        await there.close()


def test_names_beyond_the_bound_are_counted_together() -> None:
    stats = BusStats()
    for number in range(MAX_NAMES + 10):
        stats.of(f"peer-{number}").sent_bytes += 1
    assert len(stats.links) == MAX_NAMES + 1
    assert stats.links[OTHER].sent_bytes == 10
