"""The client for a session in this process: that of the network, with another way to its session."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from duologue.client import (
    ConnectionResumed,
    DuplexClient,
    DuplexConnectionError,
    DuplexInvalidRequestError,
    DuplexTrace,
    EventCollector,
    ReconnectPolicy,
    SessionConfig,
)
from duologue.client.presets import loopback
from duologue.inline import DuplexOmni, InlineDuplexClient

pytestmark = pytest.mark.unit

UNIT = bytes(80 * 16 * 2)
CONFIG = loopback([{"speak": {"units": 40, "text": "one two three"}}, {"listen": 1}])
QUICKLY = ReconnectPolicy(max_attempts=5, low_s=0.0, high_s=0.0)


def test_it_has_the_surface_of_the_other() -> None:
    def surface(kind: type) -> dict[str, str]:
        found = inspect.getmembers(kind, lambda value: callable(value) or isinstance(value, property))
        return {
            name: str(inspect.signature(value)) if callable(value) else "property"
            for name, value in found
            if not name.startswith("_")
        }

    assert surface(InlineDuplexClient) == surface(DuplexClient)
    over_network = set(inspect.signature(DuplexClient).parameters) - {"url", "api_key"}
    assert set(inspect.signature(InlineDuplexClient).parameters) - {"omni"} == over_network


async def test_an_answer_is_heard_whole_although_the_connection_is_cut() -> None:
    trace, collector = DuplexTrace(), EventCollector()
    async with (
        DuplexOmni("loopback") as omni,
        InlineDuplexClient(omni, config=CONFIG, reconnect=QUICKLY, trace=trace) as client,
    ):
        client.observe(collector)
        for n in range(40):
            await client.append_audio(UNIT)
            if n % 10 == 5:
                back = asyncio.create_task(client.wait_for("connection.resumed"))
                await asyncio.sleep(0)
                client.drop_connection()
                await back
        answer = await anext(client.responses())
        sound = b"".join([piece async for piece in answer.audio()])
    assert (answer.status, answer.transcript) == ("completed", "one two three")
    assert len(sound) == 40 * 24 * 80 * 2
    assert client.resumes == collector.timing_summary().resumes == 4
    assert [seen.event for seen in collector.seen if isinstance(seen.event, ConnectionResumed)][0].gap is False
    numbers = [entry.seq for entry in trace if entry.seq is not None and entry.type != "session.created"]
    assert sorted(set(numbers)) == list(range(1, client.last_seq + 1))


async def test_a_session_that_ends_while_the_client_is_away_is_not_resumed() -> None:
    async with DuplexOmni("loopback") as omni:
        client = InlineDuplexClient(omni, reconnect=QUICKLY)
        await client.connect()
        other = await omni.resume_session(
            client.session_id, resume_token=client.resume_token, last_received_server_event_seq=0
        )
        with pytest.raises(Exception, match="session_replaced"):
            await client.wait_for("nothing", timeout_s=10)
        await omni.close_session(other.session_id)
        await client.close()


async def test_a_wrong_configuration_is_told() -> None:
    async with DuplexOmni("loopback") as omni:
        with pytest.raises(DuplexInvalidRequestError, match="overlap_policy"):
            await InlineDuplexClient(omni, config=SessionConfig(overlap_policy="loud")).connect()


async def test_without_a_system_there_is_no_connection() -> None:
    with pytest.raises(DuplexConnectionError, match="not running"):
        await InlineDuplexClient(DuplexOmni("loopback")).connect()
