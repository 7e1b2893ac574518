"""The line to a session over connections that are lost, refused, and silent: transports made by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from duologue.client import (
    ConnectionResumed,
    DuplexConnectionError,
    DuplexReconnectError,
    DuplexRefusedError,
    DuplexResumeError,
    DuplexSessionClosedError,
    ReconnectPolicy,
)
from duologue.client.base import DuplexClientBase
from duologue.client.transport import Transport, TransportClosed

pytestmark = pytest.mark.unit

AT_ONCE = ReconnectPolicy(max_attempts=3, low_s=0.0, high_s=0.0)


class Wire(Transport):
    """A server played by the test. `blocked`: it takes nothing while nobody reads what it has to say."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.blocked = asyncio.Event()
        self.blocked.set()
        self._out: asyncio.Queue[str | None] = asyncio.Queue()
        self._news = asyncio.Event()
        self._ended = False

    def say(self, kind: str, **fields: Any) -> None:
        self.frame(json.dumps({"type": kind, **fields}))

    def frame(self, frame: str) -> None:
        """As it is, whatever it is."""
        self._out.put_nowait(frame)

    @property
    def ended(self) -> bool:
        return self._ended

    async def heard(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The first command of this kind with these fields, as soon as it is there."""
        async with asyncio.timeout(5):
            while True:
                for command in self.sent:
                    if command["type"] == kind and fields.items() <= command.items():
                        return command
                self._news.clear()
                await self._news.wait()

    async def send(self, frame: str) -> None:
        await self.blocked.wait()
        if self._ended:
            raise TransportClosed(1006)
        self.sent.append(json.loads(frame))
        self._news.set()

    async def receive(self) -> str:
        frame = await self._out.get()
        if frame is None:
            raise TransportClosed(1006)
        return frame

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._ended = True
        self._out.put_nowait(None)


class Client(DuplexClientBase):
    """Dials what the test puts in line: a wire, or the error that a dial meets."""

    def __init__(self, *dials: Wire | Exception, policy: ReconnectPolicy | None = AT_ONCE) -> None:
        self.dials = list(dials)
        super().__init__(
            model=None, config=None, reconnect=policy, heartbeat_interval_s=None, handshake_timeout_s=5.0, trace=None
        )

    async def _dial(self) -> Transport:
        found = self.dials.pop(0) if self.dials else DuplexConnectionError("nobody is there")
        if isinstance(found, Exception):
            raise found
        return found


def created(wire: Wire) -> None:
    wire.say("session.created", session={"id": "duplex-1"}, resume_token="token-1", attachment_generation=1)


def resumed(wire: Wire, last: str | None = None, **more: Any) -> None:
    wire.say(
        "session.resumed",
        session_id="duplex-1",
        session={"id": "duplex-1"},
        resume_token="token-2",
        attachment_generation=2,
        last_client_event_id=last,
        input_audio_end_ms=0,
        **more,
    )


def refused(wire: Wire, code: str, **more: Any) -> None:
    wire.say("error", error={"type": "invalid_request_error", "code": code, "message": "m", **more})


async def connected(*dials: Wire | Exception, policy: ReconnectPolicy | None = AT_ONCE) -> tuple[Client, Wire]:
    first = Wire()
    created(first)
    client = Client(first, *dials, policy=policy)
    await client.connect()
    return client, first


async def end_of(client: Client) -> BaseException:
    with pytest.raises(Exception) as ended:
        await client.wait_for("nothing", timeout_s=5)
    await client.close()
    return ended.value


async def test_what_the_server_did_not_hold_is_sent_again_and_the_rest_is_not() -> None:
    second = Wire()
    client, first = await connected(second)
    kept = await client.clear_input()
    lost = await client.commit()
    first.abort()
    resumed(second, last=kept)
    await client.wait_for("connection.resumed", timeout_s=5)
    claim, again = second.sent[:2]
    assert claim["resume_token"] == "token-1" and claim["session_id"] == "duplex-1"
    assert (again["type"], again["event_id"]) == ("input_audio_buffer.commit", lost)
    assert len(second.sent) == 2 and client.resume_token == "token-2"
    await client.close(timeout_s=0)


@pytest.mark.parametrize("nonsense", ["[]", "{", "[" * 5000])
async def test_a_frame_that_is_no_event_costs_the_connection_and_nothing_else(nonsense: str) -> None:
    """The reader would be gone, and everybody who waits for an event would wait for ever."""
    second = Wire()
    client, first = await connected(second)
    first.frame(nonsense)
    resumed(second)
    await client.wait_for("connection.resumed", timeout_s=5)
    assert first.ended and second.sent[0]["type"] == "session.resume"
    await client.close(timeout_s=0)


async def test_a_command_waits_for_the_next_connection() -> None:
    second = Wire()
    client, first = await connected(second)
    first.abort()
    await second.heard("session.resume")
    waiting = asyncio.create_task(client.heartbeat())
    await asyncio.sleep(0)
    assert not waiting.done()
    resumed(second)
    assert (await second.heard("session.heartbeat"))["event_id"] == await waiting
    await client.close(timeout_s=0)


async def test_acknowledgements_do_not_keep_the_reader_from_reading() -> None:
    client, wire = await connected()
    wire.blocked.clear()
    last = asyncio.create_task(client.wait_for("session.heartbeat_ack", timeout_s=5))
    await asyncio.sleep(0)
    for seq in range(1, 201):
        wire.say("input_audio_buffer.cleared", server_event_seq=seq)
    wire.say("session.heartbeat_ack", session_id="duplex-1")
    await last
    wire.blocked.set()
    await wire.heard("session.event_ack", server_event_seq=200)
    assert len(wire.sent) < 10
    await client.close(timeout_s=0)


async def test_after_a_gap_it_goes_on_from_the_servers_head_and_says_so() -> None:
    second, third = Wire(), Wire()
    client, first = await connected(second, third)
    seen: list[Any] = []

    async def listen() -> None:
        async for event in client.events():
            seen.append(event)

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    first.abort()
    second.say("session.resync_required", session_id="duplex-1", reason="journal_gap", head_seq=70)
    claim = await third.heard("session.resume")
    assert claim["last_received_server_event_seq"] == 70
    resumed(third, items=[])
    await client.wait_for("connection.resumed", timeout_s=5)
    assert [event.type for event in seen] == ["session.resync_required", "session.resumed", "connection.resumed"]
    assert seen[-1] == ConnectionResumed(2, gap=True)
    await client.close(timeout_s=0)
    await listening


@pytest.mark.parametrize("code", ["session_resume_expired", "invalid_resume_token"])
async def test_a_session_that_is_gone_is_given_up_at_once(code: str) -> None:
    second, third = Wire(), Wire()
    client, first = await connected(second, third)
    refused(second, code)
    first.abort()
    error = await end_of(client)
    assert isinstance(error, DuplexResumeError) and error.code == code
    assert client.dials == [third]


async def test_a_key_that_is_refused_is_not_tried_again() -> None:
    never = Wire()
    client, first = await connected(DuplexRefusedError("no", status=401, code="invalid_api_key"), never)
    first.abort()
    assert isinstance(await end_of(client), DuplexRefusedError) and client.dials == [never]


async def test_after_the_last_attempt_it_says_how_many_and_what_was_last() -> None:
    refusing = Wire()
    refused(refusing, "store_unavailable", retryable=True, retry_after_ms=1)
    client, first = await connected(DuplexConnectionError("one"), refusing, DuplexConnectionError("three"))
    first.abort()
    error = await end_of(client)
    assert isinstance(error, DuplexReconnectError)
    assert (error.attempts, str(error.last)) == (3, "three")


async def test_without_a_policy_the_loss_is_the_end() -> None:
    client, first = await connected(Wire(), policy=None)
    first.abort()
    error = await end_of(client)
    assert isinstance(error, DuplexConnectionError) and error.code == "connection_lost"


@pytest.mark.parametrize(
    ("say", "reason", "expected"),
    [
        (lambda wire: wire.say("session.closed", session_id="s", reason="shutdown", event={}), "shutdown", True),
        (
            lambda wire: wire.say("session.expired", session_id="s", reason="idle_ttl_expired"),
            "idle_ttl_expired",
            False,
        ),
        (lambda wire: wire.say("session.replaced", session_id="s", attachment_generation=1), "session_replaced", False),
    ],
)
async def test_a_session_that_has_ended_is_not_resumed_and_whoever_sends_is_told(
    say: Callable[[Wire], None], reason: str, expected: bool
) -> None:
    never = Wire()
    client, wire = await connected(never)
    say(wire)
    wire.abort()
    await end_of(client)
    with pytest.raises(DuplexSessionClosedError, match=reason) as ended:
        async with asyncio.timeout(5):
            await client.heartbeat()
    assert ended.value.expected is expected and client.dials == [never]


async def test_an_open_that_is_refused_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    wire = Wire()
    refused(wire, "model_not_found", param="model")
    client = Client(wire)
    with pytest.raises(Exception, match="model_not_found"):
        await client.connect()
    assert asyncio.all_tasks() == before
