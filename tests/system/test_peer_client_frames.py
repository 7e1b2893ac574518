"""What the peer's `DuplexClient` sends and needs, frame by frame: a conversation, a cut, a resume, its fatal codes."""

from __future__ import annotations

import asyncio
import os
import random

import pytest
from system.conftest import TwoGateways
from system.peer_client import PeerClient, ResumeRefused
from system.wire import Wire, breaks, level, seqs
from websockets.exceptions import ConnectionClosed

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

TONE_HZ = 443.1
UNITS = 30
UNIT_BYTES = 24_000 * 80 // 1000 * 2
SCRIPT = [{"when": "speech"}, {"speak": {"units": UNITS, "text": "one two three four"}}, {"listen": 1}]
TALKS = {"loopback": {"script": SCRIPT, "audio": f"tone:{TONE_HZ}"}}
LISTENS = {"loopback": {"script": [{"listen": 1}]}}


async def test_a_conversation_with_a_cut_in_the_middle_of_the_answer(served: TwoGateways) -> None:
    peer = PeerClient(served.urls[0], TALKS)
    await peer.open()
    created = peer.delivered[0]
    assert created["type"] == "session.created" and "server_event_seq" not in created
    updated = await peer.next()
    assert (updated["type"], updated["server_event_seq"]) == ("session.updated", 1)

    await peer.append(level(0, 200))
    await peer.append(level(6000, 200), is_speech=True)
    started = await peer.next("response.created")
    response_id = started["response"]["id"]
    for _ in range(5):
        await peer.next("response.output_audio.delta")
    await peer.heartbeat()
    await peer.next("session.heartbeat_ack")
    await peer.ack_playback(response_id, played_ms=160, committed_ms=80)
    acked = (await peer.next("playback.acknowledged"))["event"]
    assert (acked["played_ms"], acked["committed_ms"]) == (160, 80)

    await peer.cut()
    old_token, seen = peer.token, peer.last_seq
    peer.url = peer.url.replace(served.urls[0], served.urls[1])
    await peer.resume()
    resumed = next(event for event in peer.delivered if event["type"] == "session.resumed")
    assert "server_event_seq" not in resumed
    assert peer.token == resumed["resume_token"] != old_token
    assert resumed["session_id"] == peer.session_id
    assert peer.last_seq == seen, "the resume itself moves no cursor"

    done = await peer.next("response.done")
    assert done["response"]["status"] == "completed"
    assert len(peer.audio_of(response_id)) == UNITS * UNIT_BYTES
    assert breaks(peer.audio_of(response_id), TONE_HZ) == []
    await peer.append(level(6000, 200), is_speech=True)
    await peer.commit()
    await peer.next("input_audio_buffer.committed")
    closed = await peer.close()
    assert closed["reason"] == "client_close"
    assert peer.ws.close_code == 1000
    assert seqs(peer.delivered) == list(range(1, peer.last_seq + 1))
    assert peer.dropped == [] and peer.errors == []


async def test_res_07_cut_at_random_frames_it_has_every_number_once_and_the_newest_token(served: TwoGateways) -> None:
    seed = int(os.environ.get("DUOLOGUE_SEED") or random.randrange(2**32))
    print(f"DUOLOGUE_SEED={seed}")
    chance = random.Random(seed)

    async def one(cuts: set[int]) -> None:
        peer = PeerClient(served.urls[0], TALKS)
        await peer.open()
        await peer.append(level(6000, 200), is_speech=True)
        frames = 0
        while (await peer.next())["type"] != "response.done":
            frames += 1
            if frames in cuts:
                await peer.cut()
                await peer.resume()
        await peer.close()
        assert seqs(peer.delivered) == list(range(1, peer.last_seq + 1))
        assert peer.dropped == [], "what was replayed had not been seen"
        assert peer.token == peer.tokens[-1] and len(set(peer.tokens)) == len(cuts) + 1

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(one(set(chance.sample(range(5, 2 * UNITS), 10))))


async def test_another_process_takes_over_and_the_first_gives_up(served: TwoGateways) -> None:
    first = PeerClient(served.urls[0], LISTENS)
    await first.open()
    await first.next("session.updated")
    second = PeerClient(served.urls[1])
    second.session_id, second.token, second.last_seq = first.session_id, first.token, first.last_seq
    await second.resume()
    await second.heartbeat()
    await second.next("session.heartbeat_ack")
    await first.next("session.replaced")
    with pytest.raises(ConnectionClosed):
        await first.next()
    assert (first.ws.close_code, first.ws.close_reason) == (1000, "session_replaced")
    with pytest.raises(ResumeRefused) as refused:
        await first.resume()
    assert refused.value.code == "invalid_resume_token" and refused.value.fatal
    await second.close()


async def test_each_fatal_code_is_told_for_what_it_means_and_then_the_socket_closed(served: TwoGateways) -> None:
    peer = PeerClient(served.urls[0], LISTENS)
    await peer.open()
    await peer.next("session.updated")
    session_id, token, head = peer.session_id, peer.token, peer.last_seq
    tries = [
        ((session_id, token, -1), "invalid_session_resume"),
        (("duplex-" + "0" * 32, token, 0), "session_resume_expired"),
        ((session_id, token + "x", head), "invalid_resume_token"),
        ((session_id, token, head + 100), "session_resume_conflict"),
    ]
    for (claimed_id, claimed_token, cursor), code in tries:
        other = PeerClient(served.urls[1])
        other.session_id, other.token, other.last_seq = claimed_id, claimed_token, cursor
        with pytest.raises(ResumeRefused) as refused:
            await other.resume()
        assert refused.value.code == code and refused.value.fatal
        assert other.ws.close_code == 1008
    await peer.send({"type": "session.resume", "session_id": session_id, "resume_token": token})
    assert (await peer.next("error"))["error"]["code"] == "unsupported_session_resume"
    await peer.close()


async def test_what_was_acknowledged_is_gone_and_the_token_is_dropped_here_but_not_there(served: TwoGateways) -> None:
    peer = PeerClient(served.urls[0], LISTENS)
    await peer.open()
    await peer.next("session.updated")
    await peer.heartbeat()
    await peer.next("session.heartbeat_ack")
    await peer.cut()
    token, head, peer.last_seq = peer.token, peer.last_seq, 0
    with pytest.raises(ResumeRefused) as refused:
        await peer.resume()
    assert refused.value.code == "resync_required" and peer.token == ""
    gap = peer.delivered[-1]
    assert (gap["reason"], gap["head_seq"]) == ("journal_gap", head) and "server_event_seq" not in gap
    peer.token, peer.last_seq = token, head
    await peer.resume()
    await peer.close()


@pytest.mark.parametrize("first", ["input_audio_buffer.commit", "session.heartbeat", "response.create"])
async def test_nothing_but_an_update_or_a_resume_opens(served: TwoGateways, first: str) -> None:
    wire = await Wire.dial(served.urls[0], model="loopback", autostart="0")
    await wire.send({"type": first})
    assert (await wire.read())["type"] == "error"
    await wire.ws.wait_closed()
    assert wire.ws.close_code == 1008
