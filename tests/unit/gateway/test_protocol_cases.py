"""PRO-14 as a client meets it at a socket: what is no command is refused, at most so often, and harms no session."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import cycle, islice

import pytest
import pytest_asyncio
from unit.gateway.running import Client, System

pytestmark = pytest.mark.unit

CAP = 50
NO_COMMANDS: tuple[str | bytes, ...] = (
    "{",
    "null",
    "[1]",
    '{"event_id":"e"}',
    '{"type":7}',
    b"\x00\x01",
    '{"type":"session.update","session":' + "[" * 2000 + "]" * 2000 + "}",
    '{"type":"playback.ack","played_ms":NaN}',
)
PATHS = ("/v1/realtime?duplex=1", "/v1/realtime", "beta")


@pytest_asyncio.fixture
async def system() -> AsyncIterator[System]:
    async with System() as running:
        await running.gateway()
        yield running


async def opened(system: System, path: str) -> Client:
    """A client with a session of its own, in each dialect."""
    if path == "beta":
        client = await system.connect("/v1/realtime", additional_headers={"OpenAI-Beta": "realtime=v1"})
    else:
        client = await system.connect(path)
    await client.send("session.update", session={"model": "loopback"})
    await client.until("session.updated")
    return client


async def lives(client: Client) -> None:
    await client.send("input_audio_buffer.clear", event_id="alive")
    await client.send("bridge.private", event_id="probe")
    assert (await client.until("error"))["error"]["event_id"] == "probe"


@pytest.mark.parametrize("path", PATHS)
async def test_pro_14_fifty_frames_that_are_no_command_are_the_end_of_the_socket(system: System, path: str) -> None:
    client = await opened(system, path)
    for frame in islice(cycle(NO_COMMANDS), CAP - 1):
        await client.ws.send(frame)
    for _ in range(CAP - 1):
        told = await client.until("error")
        assert told["error"]["type"] == "invalid_request_error"
        assert told["error"]["code"] in ("invalid_json", "bad_event")
        assert len(json.dumps(told)) < 600 and "Traceback" not in json.dumps(told)
    await lives(client)
    await client.ws.send("[]")
    assert await client.closing() == (1008, "too_many_undecodable_frames")
    assert client.log[-1]["error"]["code"] == "bad_event"


@pytest.mark.parametrize("path", PATHS)
async def test_pro_14_private_events_are_refused_by_their_id_however_many(system: System, path: str) -> None:
    """They are commands of somebody else, not nonsense: the cap is not for them."""
    client = await opened(system, path)
    for n in range(3 * CAP):
        await client.send(f"bridge.event{n}", event_id=f"e{n}", data={"a": 1})
    for n in range(3 * CAP):
        told = (await client.until("error"))["error"]
        assert (told["code"], told["event_id"]) == ("unknown_event", f"e{n}")
    await lives(client)


async def test_pro_14_a_socket_that_was_ended_for_it_leaves_its_session(system: System) -> None:
    client, created = await system.open()
    for _ in range(CAP):
        await client.ws.send("null")
    assert (await client.closing())[0] == 1008
    again = await system.resume(created, after=1)
    assert (await again.next())["type"] == "session.resumed"
    await lives(again)


async def test_pro_14_bytes_that_are_no_text_close_with_1007(system: System) -> None:
    client, created = await system.open()
    await client.ws.send(b'{"type": "\xff"}', text=True)
    assert (await client.closing())[0] == 1007
    again = await system.resume(created, after=1)
    assert (await again.next())["type"] == "session.resumed"
