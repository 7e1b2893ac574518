"""A gateway whose shard is lost: the socket stays, and the session goes on at whoever has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from unit.gateway.fake_shard import FakeShard
from unit.gateway.running import WAIT_S, System, turn

from duologue.bus.messages import Deliveries, Delivery
from duologue.fence import CommandNo, Owner
from duologue.gateway import rehoming
from duologue.gateway.wire import RealtimeSocket
from duologue.protocol.duplex import SessionHeartbeat

pytestmark = pytest.mark.unit


@pytest.fixture
async def system() -> AsyncIterator[System]:
    async with System() as made:
        await made.gateway()
        yield made


async def second_shard(system: System) -> FakeShard:
    """Another one, that takes over what it is asked to."""
    heir = FakeShard(system.hub, system.store, "shard-2")
    heir.inherits = True
    await heir.endpoint.start()
    heir.register()
    assert await system.services[0].links.reach(heir.incarnation, WAIT_S) is not None
    return heir


async def lose(system: System) -> None:
    """The shard dies, and its supervisor tells."""
    await system.store.registry.remove("shard", "shard-1", system.shard.incarnation)
    await system.shard.endpoint.abort()


async def arrived(shard: FakeShard, session_id: str, commands: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while session_id not in shard.sessions or len(shard.sessions[session_id].commands) < commands:
            shard.heard.clear()
            await shard.heard.wait()


async def test_the_socket_stays_and_what_is_not_covered_is_sent_again_in_order(system: System) -> None:
    client, created = await system.open()
    session_id = created["session"]["id"]
    for n in (1, 2, 3):
        await client.send("session.heartbeat", event_id=f"before-{n}")
        await client.until("session.heartbeat_ack")
    heir = await second_shard(system)
    await lose(system)
    await client.send("session.heartbeat", event_id="meanwhile")
    await arrived(heir, session_id, 4)
    sent = heir.sessions[session_id].commands
    assert [no for no, _ in sent] == [CommandNo(1, n) for n in (1, 2, 3, 4)]
    assert [c.event_id for _, c in sent if isinstance(c, SessionHeartbeat)] == [
        "before-1",
        "before-2",
        "before-3",
        "meanwhile",
    ]
    [attach] = heir.attached_with
    assert attach.remote == "127.0.0.1"
    assert (attach.generation, attach.seq, attach.journaled) == (1, 4, 4)
    event = await client.until("session.heartbeat_ack")
    assert event["server_event_seq"] == 5
    assert client.ws.close_code is None


async def test_what_it_has_numbered_is_not_told_again_whoever_says_it(system: System) -> None:
    client, created = await system.open()
    session_id = created["session"]["id"]
    system.shard.say(session_id, {"type": "response.listen"})
    await client.until("response.listen")
    heir = await second_shard(system)
    await lose(system)
    async with asyncio.timeout(WAIT_S):
        while not heir.attached_with:
            heir.heard.clear()
            await heir.heard.wait()
    held = heir.sessions[session_id]
    assert held.link is not None
    told = [(Delivery(n, of=1), b'{"type":"response.listen","event_id":"old-%d"}' % n) for n in (1, 2)]
    new = (Delivery(1), b'{"type":"response.speak","event_id":"new"}')
    events = [*told, new]
    held.link.send(Deliveries(session_id, held.owner, tuple(what for what, _ in events)), [body for _, body in events])
    event = await client.next()
    assert (event["type"], event["server_event_seq"]) == ("response.speak", 3)


async def test_a_link_that_breaks_while_its_shard_lives_leads_back_to_it(system: System) -> None:
    client, created = await system.open()
    session_id = created["session"]["id"]
    held = system.shard.sessions[session_id]
    assert held.link is not None
    await client.send("session.heartbeat")
    await client.until("session.heartbeat_ack")
    held.link.drop("silent")
    await client.send("session.heartbeat")
    event = await client.until("session.heartbeat_ack")
    assert event["server_event_seq"] == 3
    assert client.ws.close_code is None and held.owner == Owner(1, system.shard.incarnation)


async def test_it_is_told_soon_that_the_session_is_over(system: System) -> None:
    client, created = await system.open()
    session_id = created["session"]["id"]
    owner = system.shard.sessions[session_id].owner
    await system.store.sessions.release(session_id, owner)
    await lose(system)
    assert await client.closing() == (1012, "shard_lost")


async def test_an_end_that_came_before_the_shard_was_lost_closes_the_socket(system: System) -> None:
    client, created = await system.open()
    session_id = created["session"]["id"]
    owner = system.shard.sessions[session_id].owner
    [attachment] = system.services[0].attachments
    with pytest.MonkeyPatch.context() as full:
        full.setattr(RealtimeSocket, "has_room", lambda self: False)
        system.shard.say(session_id, {"type": "session.closed"}, close_code=1013, close_reason="output_backpressure")
        await turn()
        assert attachment.outbound.has_end
        await system.store.journal.release(session_id, owner)  # as a shard does it that has waited long enough
        await system.store.sessions.release(session_id, owner)
        await lose(system)
        async with asyncio.timeout(WAIT_S):
            assert await rehoming.Rehoming(attachment).run() is None
        assert attachment.ended is None
    attachment.outbound.drained()
    assert await client.closing() == (1013, "output_backpressure")
    assert client.types()[-1] == "session.closed"


async def test_nobody_waits_for_ever(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehoming, "PATIENCE_S", 0.3)
    client, _ = await system.open()
    await lose(system)
    assert await client.closing() == (1012, "shard_lost")
    assert len(system.services[0].attachments) == 0
