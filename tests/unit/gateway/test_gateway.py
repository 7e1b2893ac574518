"""The gateway as its clients see it: a real socket in front, a fake shard behind."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from unit.gateway.running import WAIT_S, System, turn, until
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from duologue.fence import CommandNo
from duologue.gateway import rehoming
from duologue.gateway.wire import RealtimeSocket
from duologue.protocol.duplex import SessionClose
from duologue.runtime.settings import GatewaySettings
from duologue.store.ports import StoreUnavailable

pytestmark = pytest.mark.unit


async def test_an_update_opens_a_session(system: System) -> None:
    client, created = await system.open()
    assert "server_event_seq" not in created
    assert created["attachment_generation"] == 1
    assert len(created["resume_token"]) == 43
    assert client.log[1]["server_event_seq"] == 1
    message, session = system.shard.opened_with[0]
    assert session == {"model": "loopback"}
    assert created["resume_token"].encode() not in message.token_digest
    assert message.gateway == "gateway-1-a"


async def test_any_other_first_message_opens_a_default_session_and_is_carried_out(system: System) -> None:
    client = await system.connect("/v1/duplex")
    await client.send("session.heartbeat")
    await client.until("session.heartbeat_ack")
    assert client.types() == ["session.created", "session.updated", "session.heartbeat_ack"]
    assert [event.get("server_event_seq") for event in client.log] == [None, 1, 2]
    message, session = system.shard.opened_with[0]
    assert (session, message.update_is_first) == ({"model": "loopback"}, False)


@pytest.mark.parametrize(
    ("query", "first"), [("resume=1", "session.update"), ("autostart=0", "session.heartbeat")], ids=str
)
async def test_the_query_can_forbid_a_first_message(system: System, query: str, first: str) -> None:
    client = await system.connect(f"/v1/duplex?{query}")
    await client.send(first)
    assert await client.closing() == (1008, "bad_event")
    assert client.types() == ["error"]
    assert not system.shard.opened_with


@pytest.mark.parametrize("path", ["/v1/duplex?model=none", "/v1/realtime?model=none"])
async def test_an_unknown_model_in_the_query_is_refused_at_once(system: System, path: str) -> None:
    client = await system.connect(path)
    assert await client.closing() == (1008, "model_not_found")
    assert [event["error"]["code"] for event in client.log] == ["model_not_found"]


async def test_an_unknown_model_in_the_session_is_refused(system: System) -> None:
    client = await system.connect()
    await client.send("session.update", session={"model": "none"}, event_id="e1")
    assert await client.closing() == (1008, "model_not_found")
    error = client.log[-1]["error"]
    assert (error["param"], error["event_id"]) == ("model", "e1")


async def test_a_model_that_the_shard_does_not_know_is_told_with_its_field(system: System) -> None:
    system.shard.refuse = ("model_not_found", 1008)
    client = await system.connect()
    await client.send("session.update", session={"model": "loopback"})
    assert await client.closing() == (1008, "model_not_found")
    assert client.log[-1]["error"]["param"] == "model"


@pytest.mark.parametrize("first", ["session.update", "session.heartbeat"])
async def test_a_journal_that_cannot_be_claimed_is_told_with_the_id_of_the_message(
    system: System, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(type(system.store.journal), "claim", away)
    client = await system.connect()
    await client.send(first, event_id="e1", **({"session": {}} if first == "session.update" else {}))
    assert await client.closing() == (1013, "store_unavailable")
    assert client.log[-1]["error"]["event_id"] == "e1"


@pytest.mark.parametrize(
    ("path", "closed"), [("/v1/realtime?duplex=1", True), ("/v1/realtime", False)], ids=["duplex", "openai"]
)
async def test_a_session_that_opens_behind_its_client_is_closed_unless_the_client_has_its_token(
    system: System, monkeypatch: pytest.MonkeyPatch, path: str, closed: bool
) -> None:
    claim, gateway = system.store.journal.claim, system.services[0].gateway
    claiming, left = asyncio.Event(), asyncio.Event()

    async def late(*args: Any, **more: Any) -> Any:
        claiming.set()
        await left.wait()
        return await claim(*args, **more)

    monkeypatch.setattr(system.store.journal, "claim", late)
    client = await system.connect(path)
    await client.send("session.update", session={})
    await asyncio.wait_for(claiming.wait(), WAIT_S)
    [served] = gateway.sockets
    served.wire.on_room = left.set
    await client.ws.close(code=4000)
    [held] = system.shard.sessions.values()
    await until(system, lambda: held.detached)
    assert [type(command) for _, command in held.commands] == ([SessionClose] if closed else [])


@pytest.mark.parametrize(("frame", "code"), [("{no", "invalid_json"), ("[1]", "bad_event")])
async def test_a_broken_first_message_closes(system: System, frame: str, code: str) -> None:
    client = await system.connect()
    await client.ws.send(frame)
    assert (await client.next())["error"]["code"] == code
    assert (await client.closing())[0] == 1008


async def test_a_silent_client_is_sent_away(system: System) -> None:
    await system.gateway("gateway-2", first_message_timeout_s=0.05)
    client = await system.connect(at=1)
    assert await client.closing() == (1008, "config_timeout")


async def test_what_is_written_is_acknowledged_to_the_shard(system: System) -> None:
    client, created = await system.open()
    await client.send("session.heartbeat")
    await client.until("session.heartbeat_ack")
    await client.send("session.heartbeat")  # forwarded after the acknowledgement of what was written
    await client.until("session.heartbeat_ack")
    held = system.shard.sessions[created["session"]["id"]]
    assert [what.n for what, _ in held.unacked] in ([], [3])


async def test_undecodable_frames_are_forgiven_up_to_a_limit(system: System) -> None:
    client, _ = await system.open()
    for _ in range(49):
        await client.ws.send("{no")
    await client.send("session.heartbeat")
    await client.until("session.heartbeat_ack")
    await client.ws.send(b"\x00")
    assert await client.closing() == (1008, "too_many_undecodable_frames")
    assert client.types().count("error") == 50


async def test_a_frame_that_is_too_large_is_an_error_then_1009_and_the_session_resumes(
    system: System,
) -> None:
    client, created = await system.open()
    await client.ws.send("x" * (GatewaySettings().max_frame_bytes + 1))
    assert (await client.closing())[0] == 1009
    assert client.log[-1]["error"]["code"] == "event_too_large"
    again = await system.resume(created, after=1)
    assert (await again.next())["type"] == "session.resumed"


async def test_invalid_utf8_closes_with_1007_and_the_session_resumes(system: System) -> None:
    client, created = await system.open()
    await client.ws.send(b'{"type": "\xff"}', text=True)
    assert (await client.closing())[0] == 1007
    again = await system.resume(created, after=1)
    assert (await again.next())["type"] == "session.resumed"


async def test_frames_are_read_whole_however_they_are_cut(system: System) -> None:
    client, created = await system.open()
    heartbeat = json.dumps({"type": "session.heartbeat", "pad": "x" * 300})
    await client.ws.send([heartbeat[:7], heartbeat[7:200], heartbeat[200:]])
    await client.until("session.heartbeat_ack")
    frame = Frame(Opcode.TEXT, heartbeat.encode()).serialize(mask=True)
    transport = client.ws.transport
    for cut in (1, 3, 8, 100, len(frame) - 1):  # in the header, the mask, the payload
        transport.write(frame + frame[:cut])
        await turn()
        transport.write(frame[cut:])
        for _ in range(2):
            await client.until("session.heartbeat_ack")
    assert len(system.shard.sessions[created["session"]["id"]].commands) == 11


async def test_the_end_of_a_frame_that_looks_like_another_is_none(system: System) -> None:
    client, _ = await system.open()
    text, tail = b'{"type":"zzz","pad":"' + b"x" * 19, b"ab" + b"y" * 60 + b'"}'
    start = len(text)
    assert start % 4 == 0
    mask = bytes((0x81 ^ tail[0], (0x80 | (len(tail) - 6)) ^ tail[1], 1, 2))
    masked = bytes(byte ^ mask[n % 4] for n, byte in enumerate(text + tail))
    header = bytes((0x81, 0x80 | 126)) + len(masked).to_bytes(2, "big") + mask
    client.ws.transport.write(header + masked[:start])
    await turn()
    client.ws.transport.write(masked[start:])
    assert (await client.next())["error"]["code"] == "unknown_event"


async def test_too_much_that_no_checkpoint_covers_stops_the_reader(system: System) -> None:
    await system.gateway("gateway-2", uncovered_bytes=1000)
    client, created = await system.open(at=1)
    session_id = created["session"]["id"]
    audio = base64.b64encode(bytes(400)).decode()
    for n in range(6):
        await client.send("input_audio_buffer.append", audio=audio, event_id=f"e{n}")
    await client.send("session.heartbeat")
    held = system.shard.sessions[session_id]
    for _ in range(10):
        await until(system, lambda: system.shard.wanted_covered or len(held.commands) == 7)
        if len(held.commands) == 7:
            break
        assert system.shard.wanted_covered.pop() == session_id
        assert len(held.commands) % 2 == 0
        system.shard.cover(session_id)
    await client.until("session.heartbeat_ack")
    assert [command.event_id for _, command in held.commands[:-1]] == [f"e{n}" for n in range(6)]
    assert [no for no, _ in held.commands] == [CommandNo(1, n) for n in range(1, 8)]


@pytest.mark.parametrize("seq", [2, -1, True, "1", None])
async def test_a_bad_event_ack_is_refused(system: System, seq: Any) -> None:
    client, _ = await system.open()
    await client.send("session.event_ack", server_event_seq=seq, event_id="e1")
    error = (await client.next())["error"]
    assert (error["code"], error["param"], error["event_id"]) == (
        "invalid_event_ack",
        "server_event_seq",
        "e1",
    )


async def test_a_resume_later_than_first_is_refused(system: System) -> None:
    client, created = await system.open()
    await client.send("session.resume", session_id="x", resume_token="y", event_id="e1")
    error = (await client.next())["error"]
    assert (error["code"], error["event_id"]) == ("unsupported_session_resume", "e1")
    await client.send("session.heartbeat")
    await client.until("session.heartbeat_ack")


async def test_the_terminal_event_closes_the_socket_with_its_reason(system: System) -> None:
    client, created = await system.open()
    await client.send("session.close", reason="goodbye")
    assert await client.closing() == (1000, "goodbye")
    assert client.types()[-1] == "session.closed"
    held = system.shard.sessions[created["session"]["id"]]
    assert not held.unacked
    assert not held.detached


async def test_what_had_no_number_yet_follows_in_order(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    old, created = await system.open()
    session_id = created["session"]["id"]
    with monkeypatch.context() as full:
        full.setattr(RealtimeSocket, "has_room", lambda self: False)
        system.shard.say(session_id, {"type": "one"}, {"type": "two"})
        await turn()
    system.shard.says_before_it_answers = {"type": "three"}  # to the older attachment still
    new = await system.resume(created, after=1)
    await new.until("three")
    assert [(event["type"], event.get("server_event_seq")) for event in new.log] == [
        ("session.resumed", None),
        ("one", 2),
        ("two", 3),
        ("three", 4),
    ]


async def test_the_loss_of_the_shard_is_told_when_nobody_inherits(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehoming, "PATIENCE_S", 0.3)
    client, _ = await system.open()
    await system.shard.endpoint.abort()
    assert await client.closing() == (1012, "shard_lost")
    error = client.log[-1]["error"]
    assert (error["code"], error["retryable"]) == ("shard_lost", True)


@pytest.mark.parametrize(("code", "clean"), [(1000, True), (1001, False)])
async def test_the_shard_learns_how_the_client_left(system: System, code: int, clean: bool) -> None:
    client, created = await system.open()
    await client.ws.close(code)
    held = system.shard.sessions[created["session"]["id"]]
    await system.services[0].gateway.emptied.wait()
    await system.services[0].chores.settled(1)
    other, _ = await system.open()  # what was sent before has arrived
    assert held.detached == [(1, clean)]


# -- the OpenAI dialects --------------------------------------------------------------------------------


async def test_stock_clients_are_greeted_before_they_speak(system: System) -> None:
    client = await system.connect("/v1/realtime")
    created = await client.next()
    assert (created["type"], created["server_event_seq"]) == ("session.created", 0)
    assert created["session"]["type"] == "realtime"
    assert not system.shard.opened_with
    await client.send("session.update", session={"type": "realtime", "instructions": "Be kind."}, event_id="u1")
    updated = await client.next()
    assert (updated["type"], updated["server_event_seq"]) == ("session.updated", 1)
    message, session = system.shard.opened_with[0]
    assert message.session_id == created["session"]["id"]
    assert (message.announced, message.update_event_id, message.dialect) == (True, "u1", "openai")
    assert session["model"] == "loopback"


async def test_a_refused_first_update_leaves_the_session_provisional(system: System) -> None:
    client = await system.connect("/v1/realtime")
    created = await client.next()
    system.shard.refuse = ("unsupported_audio_format", 1008)
    await client.send("session.update", session={})
    assert (await client.next())["error"]["code"] == "unsupported_audio_format"
    system.shard.refuse = None
    await client.send("session.update", session={})
    await client.until("session.updated")
    assert {message.session_id for message, _ in system.shard.opened_with} == {created["session"]["id"]}


async def test_a_full_shard_ends_a_provisional_session(system: System) -> None:
    client = await system.connect("/v1/realtime")
    system.shard.refuse = ("resource_exhausted", 1013)
    await client.send("session.update", session={})
    assert (await client.closing())[0] == 1013


async def test_the_token_of_a_provisional_session_has_expired(system: System) -> None:
    client = await system.connect("/v1/realtime")
    created = await client.next()
    query = f"resume_session={created['session']['id']}&resume_token={created['resume_token']}&last_seq=0"
    other = await system.connect(f"/v1/realtime?{query}")
    assert (await other.next())["error"]["code"] == "session_resume_expired"


async def test_a_stock_client_resumes_by_query(system: System) -> None:
    old = await system.connect("/v1/realtime")
    created = await old.next()
    await old.send("session.update", session={})
    await old.until("session.updated")
    old.ws.transport.abort()
    query = f"resume_session={created['session']['id']}&resume_token={created['resume_token']}&last_seq=0"
    new = await system.connect(f"/v1/realtime?{query}")
    again = await new.next()
    assert (again["type"], again["server_event_seq"]) == ("session.created", 1)
    assert again["resume_token"] != created["resume_token"]
    assert (await new.next())["server_event_seq"] == 1


async def test_a_query_with_half_a_resume_is_refused(system: System) -> None:
    client = await system.connect("/v1/realtime?resume_token=x&last_seq=0")
    error = (await client.next())["error"]
    assert (error["code"], error["param"]) == ("invalid_session_resume", "resume_session")
    assert (await client.closing())[0] == 1008


async def test_another_dialect_cannot_resume(system: System) -> None:
    _, created = await system.open()
    query = f"resume_session={created['session']['id']}&resume_token={created['resume_token']}&last_seq=1"
    client = await system.connect(f"/v1/realtime?{query}")
    error = (await client.next())["error"]
    assert (error["code"], error["param"]) == ("invalid_session_resume", "dialect")


# -- before the upgrade ---------------------------------------------------------------------------------


async def refused(system: System, path: str = "/v1/realtime", at: int = 0, **options: Any) -> tuple[int, Any]:
    with pytest.raises(InvalidStatus) as refusal:
        await system.connect(path, at=at, **options)
    response = refusal.value.response
    return response.status_code, response.headers.get("Retry-After")


async def test_a_foreign_origin_is_refused(system: System) -> None:
    assert (await refused(system, origin="https://evil.example"))[0] == 403
    assert (await refused(system, "/v1/duplex", origin="https://evil.example"))[0] == 403


async def test_a_key_is_needed_where_there_are_keys(system: System) -> None:
    await system.gateway("gateway-2", api_keys=("secret",))
    assert (await refused(system, at=1))[0] == 401
    assert (await refused(system, "/v1/duplex", at=1))[0] == 401
    key = "openai-insecure-api-key.secret"
    client = await system.connect(at=1, subprotocols=["realtime", key])
    assert client.ws.subprotocol == "realtime"
    await system.connect(at=1, additional_headers={"Authorization": "Bearer secret"})


async def test_a_full_system_says_when_to_come_again(system: System) -> None:
    system.shard.register(max_sessions=0)
    system.services[0].router.update([system.shard.registration(max_sessions=0)])
    status, after = await refused(system)
    assert status == 503 and after in ("1", "2", "3"), "by chance: those refused together do not come together"
    await system.connect("/v1/duplex?autostart=0")  # it may be here to resume


async def test_a_crowd_is_let_in_by_the_rate(system: System) -> None:
    """Whether they are here to open or to resume: after a gateway died they all resume."""
    await system.gateway("gateway-2", max_connects_per_s=1)
    for _ in range(2):
        await system.connect("/v1/duplex?autostart=0&resume=1", at=1)
    with pytest.raises(InvalidStatus) as refusal:
        await system.connect("/v1/duplex?autostart=0&resume=1", at=1)
    answer = refusal.value.response
    error = json.loads(answer.body or b"")["error"]
    assert (answer.status_code, error["code"]) == (503, "resource_exhausted")
    assert 500 <= error["retry_after_ms"] <= 1000 * int(answer.headers["Retry-After"])


async def test_a_draining_gateway_tells_its_clients_and_takes_no_more(system: System) -> None:
    client, _ = await system.open()
    system.services[0].drain(0.05)
    assert (await client.next())["type"] == "session.going_away"
    assert (await refused(system))[0] == 503
    assert (await client.closing())[0] == 1012


async def test_an_unknown_path_is_not_found(system: System) -> None:
    assert (await refused(system, "/v1/elsewhere"))[0] == 404


# -- HTTP -----------------------------------------------------------------------------------------------


async def get(system: System, path: str) -> tuple[int, Any]:
    host, _, port = system.urls[0].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {system.urls[0]}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), json.loads(body)


async def test_models_are_listed_with_their_capabilities(system: System) -> None:
    status, listing = await get(system, "/v1/models")
    assert (status, listing["object"]) == (200, "list")
    assert [model["id"] for model in listing["data"]] == ["loopback"]
    assert listing["data"][0]["capabilities"]["supports_session_resume"] is True


async def test_readiness_names_what_is_missing(system: System) -> None:
    assert (await get(system, "/readyz"))[0] == 200
    system.services[0].router.update([system.shard.registration(accepting=False)])
    status, body = await get(system, "/readyz")
    assert (status, body["missing"]) == (503, ["no shard is accepting sessions"])
    assert (await get(system, "/health"))[0] == 200
