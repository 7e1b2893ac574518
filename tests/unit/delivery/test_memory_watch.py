"""Looking how full the store is: beside everything else, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from duologue.delivery import memory_watch
from duologue.delivery.memory_watch import watch_memory
from duologue.store.memory import MemoryStore
from duologue.store.memory_budget import MemoryBudget, ServerMemory
from duologue.store.ports import StoreUnavailable

pytestmark = pytest.mark.unit


class Server:
    """Answers so far; None: it is away. After the last answer it ends the watch."""

    def __init__(self, *used: int | None) -> None:
        self.memory = MemoryBudget(8 * 1024 * 1024)
        self.journals: list[int] = []
        self._used = list(used)

    async def look_at_memory(self, journals: int) -> None:
        if not self._used:
            raise asyncio.CancelledError
        self.journals.append(journals)
        used = self._used.pop(0)
        if used is None:
            raise StoreUnavailable("away")
        self.memory.heard(ServerMemory(used, 100), [], journals)


async def watch(server: Server, journals: Callable[[], int] = lambda: 3) -> None:
    with pytest.raises(asyncio.CancelledError):
        await watch_memory(server, journals, logging.getLogger("duologue.gateway"))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "LOOK_S", 0.0)


async def test_it_tells_when_the_store_is_nearly_full_and_when_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "duologue.gateway")
    counts = iter(range(10))
    server = Server(50, 86, 87, 82, 70, 86)
    await watch(server, lambda: next(counts))
    assert server.journals == [0, 1, 2, 3, 4, 5], "how many there are is asked each time"
    told = [record.getMessage() for record in caplog.records]
    assert [message.split(":")[0] for message in told] == [
        "the store is nearly full",
        "the store has room again",
        "the store is nearly full",
    ]
    assert "86 %" in told[0] and "KiB" in told[0]


async def test_while_the_server_is_away_what_was_known_stays(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(86, None, None)
    await watch(server)
    assert server.memory.full and len(server.journals) == 3
    assert len(caplog.records) == 1


async def test_a_store_without_a_budget_is_not_watched() -> None:
    await asyncio.wait_for(watch_memory(MemoryStore(), lambda: 0), 1.0)
