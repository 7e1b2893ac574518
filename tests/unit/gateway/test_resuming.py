"""Resumes and takeovers as clients see them: a real socket in front of the gateway, a fake shard behind."""

from __future__ import annotations

from typing import Any

import pytest
from unit.gateway.running import WAIT_S, System, turn

from duologue.fence import DeliveryId
from duologue.gateway.wire import RealtimeSocket
from duologue.store.ports import Activated, Owned, ResumeRefused, StoreUnavailable

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("at", [0, 1], ids=["same gateway", "another gateway"])
async def test_a_takeover_replays_and_ends_the_old_socket(system: System, at: int) -> None:
    await system.gateway("gateway-2")
    old, created = await system.open()
    session_id = created["session"]["id"]
    system.shard.say(session_id, *({"type": "x", "k": k} for k in range(40)))
    while len(old.log) < 42:
        await old.next()
    new = await system.resume(created, after=3, at=at)
    resumed = await new.next()
    assert resumed["type"] == "session.resumed"
    assert "server_event_seq" not in resumed
    assert resumed["attachment_generation"] == 2
    assert resumed["resume_token"] != created["resume_token"]
    assert (resumed["last_client_event_id"], resumed["input_audio_end_ms"]) == ("evt_9", 320)
    assert "items" not in resumed
    assert await old.closing() == (1000, "session_replaced")
    assert (old.log[-1]["type"], old.log[-1]["attachment_generation"]) == ("session.replaced", 1)
    system.shard.say(session_id, {"type": "live"})
    live = await new.until("live")
    assert live["server_event_seq"] == 42
    assert new.log[1:-1] == [event for event in old.log if event.get("server_event_seq", 0) > 3]
    again = await system.resume(created, after=3)  # with the token that was used
    assert (await again.next())["error"]["code"] == "invalid_resume_token"
    await new.send("session.heartbeat")
    await new.until("session.heartbeat_ack")


async def test_the_end_reaches_a_client_that_reads_again_after_the_journal_was_released(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, created = await system.open()
    session_id = created["session"]["id"]
    with monkeypatch.context() as full:
        full.setattr(RealtimeSocket, "has_room", lambda self: False)
        end = {"type": "error"}, {"type": "session.closed"}
        system.shard.say(session_id, *end, close_code=1013, close_reason="output_backpressure")
        await turn()
    await system.store.journal.release(session_id, system.shard.sessions[session_id].owner)
    for waiting in list(system.services[0].gateway.sockets):
        waiting._on_room()
    assert await client.closing() == (1013, "output_backpressure")
    assert [(event["type"], event["server_event_seq"]) for event in client.log[2:]] == [
        ("error", 2),
        ("session.closed", 3),
    ]


@pytest.mark.parametrize("after", [1, 3], ids=["replayed", "the client has it"])
async def test_an_end_that_is_in_the_journal_closes_a_resumed_socket_with_its_reason(
    system: System, after: int
) -> None:
    client, created = await system.open()
    end = {"type": "x"}, {"type": "session.closed"}
    system.shard.say(created["session"]["id"], *end, close_code=1013, close_reason="output_backpressure")
    await client.closing()
    again = await system.resume(created, after=after)
    assert await again.closing() == (1013, "output_backpressure")
    assert [event.get("server_event_seq") for event in again.log] == [None, *range(after + 1, 4)]


async def test_a_replay_whose_journal_is_released_names_a_head_that_the_client_can_have(
    system: System, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old, created = await system.open()
    session_id = created["session"]["id"]
    system.shard.say(session_id, *({"type": "x"} for _ in range(40)))
    while len(old.log) < 42:
        await old.next()
    read, journal = system.store.journal.read, system.store.journal

    async def released(session_id: str, after_seq: int, *, limit: int) -> Any:
        if limit > 1:
            await journal.release(session_id, system.shard.sessions[session_id].owner)
        return await read(session_id, after_seq, limit=limit)

    monkeypatch.setattr(journal, "read", released)
    new = await system.resume(created, after=3)
    await new.closing()
    assert (new.log[-1]["type"], new.log[-1]["head_seq"]) == ("session.resync_required", 41)
    assert f"{created['session']['id']} has a gap: replayed to 3 of 41" in caplog.text


async def test_a_cursor_beyond_the_head_leaves_the_token_good(system: System) -> None:
    old, created = await system.open()
    new = await system.resume(created, after=9)
    assert (await new.next())["error"]["code"] == "session_resume_conflict"
    assert (await new.closing())[0] == 1008
    again = await system.resume(created, after=1)
    assert (await again.next())["type"] == "session.resumed"


async def test_what_was_sent_while_the_store_was_away_and_lost_is_a_gap_and_its_numbers_are_not_given_again(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    """An egress sent 2 to 5 live, told the shard, and ended before the store was back."""
    _, created = await system.open()
    held = system.shard.sessions[created["session"]["id"]]
    await turn()
    held.n = 5
    held.reported = (5, DeliveryId(held.owner.number, 5))
    for cursor in (1, 2, 4):
        client = await system.resume(created, after=cursor)
        gap = await client.next()
        assert (gap["type"], gap["reason"], gap["head_seq"]) == ("session.resync_required", "journal_gap", 5)
        assert (await client.closing())[0] == 1008
    assert f"{created['session']['id']} has a gap: resumed from 4 of 5, the journal ends at 1" in caplog.text
    beyond = await system.resume(created, after=6)
    assert (await beyond.next())["error"]["code"] == "session_resume_conflict"
    again = await system.resume(created, after=5)
    resumed = await again.next()
    assert (resumed["type"], resumed["items"]) == ("session.resumed", [{"id": "m1"}])
    system.shard.say(created["session"]["id"], {"type": "session.heartbeat_ack"})
    assert (await again.next())["server_event_seq"] == 6
    late = await system.resume({**created, "resume_token": resumed["resume_token"]}, after=1)
    assert (await late.next())["head_seq"] == 6


async def test_a_shard_that_does_not_say_how_far_it_numbered_is_asked_again(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duologue.gateway.resuming.REACH_S", 0.05)
    _, created = await system.open()
    system.shard.silent = True
    refused = await (await system.resume(created, after=9)).next()
    assert (refused["error"]["code"], refused["error"]["retryable"]) == ("runtime_resume_failed", True)
    system.shard.silent = False
    assert (await (await system.resume(created, after=1)).next())["type"] == "session.resumed"


async def test_a_session_that_ended_just_now_has_expired_although_the_store_still_has_it(system: System) -> None:
    """The client has the number of `session.closed`, the journal perhaps not yet, and the shard nothing any more."""
    _, created = await system.open()
    session_id = created["session"]["id"]
    held = system.shard.sessions.pop(session_id)
    client = await system.resume(created, after=9)
    await turn()
    await system.store.sessions.release(session_id, held.owner)
    assert (await client.next())["error"]["code"] == "session_resume_expired"
    assert (await client.closing())[0] == 1008


async def test_a_session_that_moves_just_now_may_be_resumed_later(system: System) -> None:
    _, created = await system.open()
    session_id = created["session"]["id"]
    held = system.shard.sessions.pop(session_id)
    client = await system.resume(created, after=9)
    await turn()
    heir = await system.store.sessions.own(session_id, incarnation="another", above=held.owner.number)
    assert isinstance(heir, Owned)
    refused = await client.next()
    assert (refused["error"]["code"], refused["error"]["retryable"]) == ("runtime_resume_failed", True)


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_session_that_the_store_has_lost_is_told_to_it_again(system: System, resumed: bool) -> None:
    """A failover to a replica that is behind: no call failed, but the connection was another one."""
    client, created = await system.open()
    if resumed:
        client = await system.resume(created, after=1)
        created = {**created, "resume_token": (await client.next())["resume_token"]}
    await system.services[0].chores.settled(WAIT_S)
    before = await system.store.sessions.look_up(created["session"]["id"])
    assert before is not None and before.record.extra
    system.store.server.commands.flush()
    system.shard.register()
    assert await system.store.sessions.look_up(created["session"]["id"]) is None
    system.services[0].remembering.answered(False)
    await system.services[0].chores.settled(WAIT_S)
    assert await system.store.sessions.look_up(created["session"]["id"]) is None, "nothing told of another server"
    system.store.appender.reconnects += 1
    system.services[0].remembering.answered(False)
    await system.services[0].chores.settled(WAIT_S)
    assert await system.store.sessions.look_up(created["session"]["id"]) == before
    again = await system.resume(created, after=1)
    assert (await again.next())["type"] in ("session.resumed", "session.resync_required")


async def test_a_gap_is_told_and_is_no_dead_end(system: System, caplog: pytest.LogCaptureFixture) -> None:
    old, created = await system.open()
    await old.send("session.heartbeat")
    await old.until("session.heartbeat_ack")
    system.shard.cover(created["session"]["id"])
    await old.send("session.event_ack", server_event_seq=2)
    await old.send("session.heartbeat")
    await old.until("session.heartbeat_ack")
    new = await system.resume(created, after=0)
    gap = await new.next()
    assert (gap["type"], gap["reason"], gap["head_seq"]) == ("session.resync_required", "journal_gap", 3)
    assert f"{created['session']['id']} has a gap: resumed from 0 of 3, the journal begins behind it" in caplog.text
    assert (await new.closing())[0] == 1008
    again = await system.resume(created, after=gap["head_seq"])
    assert (await again.next())["items"] == [{"id": "m1"}]


@pytest.mark.parametrize(
    ("claim", "code"),
    [
        ({"session_id": None}, "invalid_session_resume"),
        ({"last_received_server_event_seq": True}, "invalid_session_resume"),
        ({"session_id": "duplex-" + "0" * 32}, "session_resume_expired"),
        ({"resume_token": "A" * 43}, "invalid_resume_token"),
    ],
    ids=str,
)
async def test_res_05_a_wrong_resume_is_refused(system: System, claim: dict[str, Any], code: str) -> None:
    _, created = await system.open()
    client = await system.connect()
    good = {"session_id": created["session"]["id"], "resume_token": created["resume_token"]}
    await client.send("session.resume", **{**good, "last_received_server_event_seq": 1, **claim})
    assert (await client.next())["error"]["code"] == code
    assert (await client.closing())[0] == 1008


async def test_a_resume_that_the_shard_does_not_answer_may_be_tried_again(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duologue.gateway.resuming.ATTACH_S", 0.05)
    old, created = await system.open()
    await old.ws.close()
    system.shard.silent = True
    new = await system.resume(created, after=1)
    error = (await new.next())["error"]
    assert (error["code"], error["retryable"]) == ("runtime_resume_failed", True)
    assert error["retry_after_ms"] > 0
    assert (await new.closing())[0] == 1013
    system.shard.silent = False
    await system.services[0].chores.settled(1)
    again = await system.resume(created, after=1)  # the token before is good: nobody holds the attachment
    assert (await again.next())["type"] == "session.resumed"


async def test_activations_that_are_carried_out_late_are_refused(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late: several attempts were given up, and the client has resumed and gone again meanwhile."""
    old, created = await system.open()
    await old.ws.close()
    sessions, late = system.store.sessions, []
    activate = sessions.activate

    async def unanswered(*args: Any, **how: Any) -> Activated:
        late.append((args, how))
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(sessions, "activate", unanswered)
        for _ in range(3):
            new = await system.resume(created, after=1)
            assert (await new.next())["error"]["code"] == "runtime_resume_failed"
    await system.services[0].chores.settled(1)
    for args, how in late:
        assert isinstance(await activate(*args, **how), ResumeRefused)
    found = await sessions.look_up(created["session"]["id"])
    assert found is not None and found.record.generation == 1
    again = await system.resume(created, after=1)
    assert (await again.next())["type"] == "session.resumed"


async def test_res_02_a_client_that_reads_nothing_does_not_delay_a_takeover(system: System) -> None:
    old, created = await system.open()
    old.ws.transport.pause_reading()
    session_id = created["session"]["id"]
    for _ in range(100):
        system.shard.say(session_id, {"type": "big", "pad": "x" * 100_000})
        await turn()
    new = await system.resume(created, after=1)
    assert (await new.next())["type"] == "session.resumed"
    numbers = [(await new.next())["server_event_seq"] for _ in range(100)]
    assert numbers == list(range(2, 102))
    old.ws.transport.resume_reading()


async def test_what_the_shard_has_journaled_meanwhile_is_no_gap(system: System) -> None:
    """2 to 5 were sent live, and their gateway gave them to the shard: it adds them under the claim of the next one."""
    _, created = await system.open()
    session_id = created["session"]["id"]
    held = system.shard.sessions[session_id]
    await turn()
    held.n = 5
    held.reported = (5, DeliveryId(held.owner.number, 5))
    held.kept = [(DeliveryId(held.owner.number, n), b'{"type":"x","n":%d}' % n) for n in range(2, 6)]
    client = await system.resume(created, after=3)
    resumed = await client.next()
    assert resumed["type"] == "session.resumed"
    assert [(await client.next())["server_event_seq"] for _ in range(2)] == [4, 5]
    system.shard.say(session_id, {"type": "live"})
    assert (await client.until("live"))["server_event_seq"] == 6
