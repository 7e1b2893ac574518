"""Cases of lifecycle that need the whole system in one loop: it can be cut off at every single turn of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from duologue.client.transport import TransportClosed
from duologue.inline.system import InlineSystem
from duologue.runtime.settings import SystemSettings

pytestmark = [pytest.mark.unit, pytest.mark.timeout(180)]

UPDATE = json.dumps({"type": "session.update", "session": {"model": "loopback"}})
MOST_TURNS = 400
NOTHING = (0, 0, 0, 0)


@pytest.fixture
async def system() -> AsyncIterator[InlineSystem]:
    running = InlineSystem(SystemSettings(pipelines=("loopback",)))
    await running.start()
    yield running
    await running.stop()


def held(system: InlineSystem) -> tuple[int, int, int, int]:
    """Places in the shard, opens on their way, attachments, and ended sessions whose keys are still there."""
    shard = system.shard
    return (
        len(shard.admission),
        shard.manager.opening,
        len(system._service.gateway.attachments),
        len(shard.cleanup),
    )


async def settled(holds: Callable[[], bool]) -> None:
    """Turns of the loop, and threads of workers: it is looked at again until it is so."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - of a sum of many things nobody is told
            await asyncio.sleep(0)


async def _opened(system: InlineSystem) -> str:
    """A session that opens, answers to a heartbeat and ends, as ever."""
    socket = system.connect("loopback")
    await socket.send(UPDATE)
    created = json.loads(await socket.receive())
    assert created["type"] == "session.created", created
    await socket.send(json.dumps({"type": "session.close"}))
    with pytest.raises(TransportClosed):
        while True:
            await socket.receive()
    return str(created["session"]["id"])


async def _cut_after(system: InlineSystem, turns: int) -> bool:
    """Open, and cancel the socket's handler after so many turns, twice in a row. Whether it was open by then."""
    socket = system.connect("loopback")
    (handler,) = system._sockets
    sending = asyncio.create_task(socket.send(UPDATE))
    for _ in range(turns):
        await asyncio.sleep(0)
    was_open = bool(socket._outbox)  # its client was told, and may come back
    handler.cancel()
    await asyncio.sleep(0)
    handler.cancel()  # in the middle of what the first one has it take back
    await asyncio.wait((handler,))
    socket.abort()
    sending.cancel()
    await asyncio.wait((sending,))
    return was_open


async def test_lif_02_an_open_that_is_cancelled_at_any_point_gives_its_place_back(system: InlineSystem) -> None:
    assert held(system) == NOTHING
    for turns in range(MOST_TURNS):
        if await _cut_after(system, turns):
            break
        assert len(system._service.gateway.attachments) == 0, "at once, whatever the shard is doing"
        await settled(lambda: held(system) == NOTHING)
    else:
        raise AssertionError("it was never open")
    assert turns > 3, "there is something to be cut off"
    for resident in system.shard.manager.residents:
        assert system.shard.manager.kill(resident.session_id, "over", 1000)
    await settled(lambda: held(system) == NOTHING)
    session_id = await _opened(system)
    await settled(lambda: held(system) == NOTHING)
    assert await system.store.sessions.look_up(session_id) is None
