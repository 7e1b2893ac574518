"""Sessions in this process: opened, left, taken up again, ended. The product's own services run underneath."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from duologue.client import DuplexConnectionError, DuplexInvalidRequestError, DuplexSessionClosedError, SessionConfig
from duologue.client.presets import loopback
from duologue.inline import DuplexOmni, DuplexSessionHandle, UnknownSessionError
from duologue.inline.handle import HandleEvent
from duologue.protocol.duplex import ContentPart, ErrorEvent, ItemRetrieved, SessionResumed, message_item
from duologue.runtime.settings import SystemSettings

pytestmark = pytest.mark.unit

UNIT = bytes(80 * 16 * 2)
ANSWER: list[dict[str, Any]] = [{"speak": {"units": 4, "text": "one two"}}, {"listen": 1}]


@pytest.fixture
async def omni() -> AsyncIterator[DuplexOmni]:
    async with DuplexOmni("loopback") as omni:
        yield omni


async def until(session: DuplexSessionHandle, kind: str) -> list[HandleEvent]:
    seen: list[HandleEvent] = []
    async with asyncio.timeout(20):
        async for event in session.events():
            seen.append(event)
            if event.type == kind:
                return seen
    raise AssertionError(f"no {kind}: {[event.type for event in seen]}")


def types(events: list[HandleEvent]) -> list[str]:
    return [event.type for event in events]


async def test_a_session_is_told_first_and_answers(omni: DuplexOmni) -> None:
    session = await omni.open_session(loopback(ANSWER))
    assert session.session_id.startswith("duplex-") and session.attached and session.capabilities
    for _ in range(4):
        await session.append_audio(UNIT)
    seen = await until(session, "response.done")
    assert types(seen)[:2] == ["session.created", "session.updated"]
    assert types(seen).count("response.output_audio.delta") == 4
    seqs = [event.server_event_seq for event in seen if event.server_event_seq is not UNSET]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_it_is_found_by_its_id_until_it_ends(omni: DuplexOmni) -> None:
    session = await omni.open_session()
    assert omni.get_session(session.session_id) is session
    await omni.close_session(session.session_id, "enough")
    assert types([event async for event in session.events()])[-1] == "session.closed"
    assert (session.end_reason, session.attached) == ("enough", False)
    for call in (omni.get_session, omni.detach_session):
        with pytest.raises(UnknownSessionError):
            call(session.session_id)
    with pytest.raises(UnknownSessionError):
        await omni.resume_session("duplex-nobodys")
    with pytest.raises(DuplexSessionClosedError, match="enough"):
        await session.append_audio(UNIT)


async def test_a_detached_session_works_on_and_nothing_is_missed_or_doubled(omni: DuplexOmni) -> None:
    session = await omni.open_session(loopback(ANSWER))
    await session.append_audio(UNIT * 4)
    before = await until(session, "response.output_audio.delta")
    assert omni.detach_session(session.session_id)
    assert not session.attached and [event async for event in session.events()] == []
    assert not omni.detach_session(session.session_id)
    assert await omni.resume_session(session.session_id) is session
    after = await until(session, "response.done")
    assert isinstance(after[0], SessionResumed) and session.generation == 2
    seqs = [event.server_event_seq for event in before + after if event.server_event_seq is not UNSET]
    assert seqs == list(range(1, len(seqs) + 1))
    assert types(before + after).count("response.output_audio.delta") == 4


async def test_what_was_not_read_comes_again_after_a_takeover(omni: DuplexOmni) -> None:
    session = await omni.open_session(loopback(ANSWER))
    await session.append_audio(UNIT * 4)
    await omni.resume_session(session.session_id)
    seen = await until(session, "response.done")
    assert types(seen)[0] == "session.resumed" and "session.replaced" not in types(seen)
    assert types(seen).count("response.output_audio.delta") == 4


async def test_an_older_holder_does_not_detach_a_newer_one(omni: DuplexOmni) -> None:
    session = await omni.open_session()
    held = session.generation
    await omni.resume_session(session.session_id)
    assert not omni.detach_session(session.session_id, generation=held) and session.attached
    assert omni.detach_session(session.session_id, generation=session.generation)


async def test_a_detached_session_is_closed(omni: DuplexOmni) -> None:
    session = await omni.open_session()
    omni.detach_session(session.session_id)
    await omni.close_session(session.session_id)
    with pytest.raises(UnknownSessionError):
        omni.get_session(session.session_id)


async def test_one_that_nobody_reads_is_closed_all_the_same(omni: DuplexOmni) -> None:
    session = await omni.open_session(loopback([{"speak": {"units": 400, "text": "on and on"}}]))
    for _ in range(60):
        await session.append_audio(UNIT)
    async with asyncio.timeout(20):
        await omni.close_session(session.session_id)
    assert types([event async for event in session.events()])[-1] == "session.closed"


async def test_what_is_wrong_is_told_with_its_field(omni: DuplexOmni) -> None:
    with pytest.raises(DuplexInvalidRequestError) as refused:
        await omni.open_session({"temperature": "warm"})
    assert refused.value.code == "invalid_session_config" and "temperature" in (refused.value.param or "")
    with pytest.raises(DuplexInvalidRequestError, match="model_not_found"):
        await omni.open_session(model="nobody")
    session = await omni.open_session()
    event_id = await session.retrieve_item("item_nowhere")
    error = (await until(session, "error"))[-1]
    assert isinstance(error, ErrorEvent) and (error.error.code, error.error.event_id) == ("item_not_found", event_id)


async def test_commands_are_typed_and_their_answers_too(omni: DuplexOmni) -> None:
    session = await omni.open_session(SessionConfig(auto_response=False))
    await session.create_item(message_item("item_mine", "user", ContentPart(type="input_text", text="hello")))
    await session.retrieve_item("item_mine")
    found = (await until(session, "conversation.item.retrieved"))[-1]
    assert isinstance(found, ItemRetrieved) and found.item.text == "hello"
    await session.update_session({"instructions": "be brief"})
    await until(session, "session.updated")
    assert session.session["instructions"] == "be brief"


async def test_the_events_have_one_reader(omni: DuplexOmni) -> None:
    session = await omni.open_session()
    await until(session, "session.updated")
    waiting = asyncio.ensure_future(anext(session.events()))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one reader"):
        await anext(session.events())
    await session.heartbeat()
    assert (await waiting).type == "session.heartbeat_ack"


async def test_there_is_room_for_as_many_sessions_as_the_settings_say() -> None:
    settings = SystemSettings()
    settings = msgspec.structs.replace(settings, session=msgspec.structs.replace(settings.session, max_sessions=1))
    async with DuplexOmni("loopback", settings=settings) as omni:
        session = await omni.open_session()
        with pytest.raises(Exception, match="resource_exhausted"):
            await omni.open_session()
        await omni.close_session(session.session_id)
        await omni.open_session()


async def test_at_the_end_everybody_is_told_and_nothing_is_left() -> None:
    before = asyncio.all_tasks()
    async with DuplexOmni("loopback") as omni:
        session = await omni.open_session()
        other = await omni.open_session()
        omni.detach_session(other.session_id)
    assert types([event async for event in session.events()])[-1] == "session.closed"
    assert session.end_reason == "shutdown"
    assert asyncio.all_tasks() == before
    with pytest.raises(DuplexConnectionError, match="not running"):
        await omni.open_session()
    await omni.stop()


async def test_two_systems_in_one_process_do_not_know_each_other() -> None:
    async with DuplexOmni("loopback") as one, DuplexOmni("loopback") as two:
        session = await one.open_session()
        with pytest.raises(UnknownSessionError):
            two.get_session(session.session_id)
