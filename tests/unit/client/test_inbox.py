"""What waits for a listener of the client library: bounded, the newest win, and what was lost is counted."""

from __future__ import annotations

import asyncio

import pytest

from duologue.client import DuplexClient
from duologue.client.events import ConnectionResumed
from duologue.client.inbox import CAPACITY, Inbox
from duologue.client.listeners import MAX_RESPONSES, Listeners
from duologue.client.responses import MAX_CHUNKS, ResponseHandle
from duologue.protocol.duplex import AudioDelta, ResponseListen, event_from_realtime

pytestmark = pytest.mark.unit


async def test_a_listener_that_does_not_keep_up_loses_the_oldest() -> None:
    inbox = Inbox(capacity=3)
    for number in range(5):
        inbox.put(ConnectionResumed(number))
    inbox.close(None)
    seen = [event.attempt for _ in range(3) if isinstance(event := await inbox.get(), ConnectionResumed)]
    assert (seen, inbox.dropped) == ([2, 3, 4], 2)
    with pytest.raises(StopAsyncIteration):
        await inbox.get()


async def test_who_waits_is_told_of_the_end() -> None:
    inbox = Inbox()
    waiting = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.close(RuntimeError("over"))
    with pytest.raises(RuntimeError, match="over"):
        await waiting


async def test_audio_that_nobody_plays_is_bounded() -> None:
    handle = ResponseHandle("r")
    delta = event_from_realtime('{"type":"response.output_audio.delta","response_id":"r","item_id":"i","delta":"AAA="}')
    assert isinstance(delta, AudioDelta)
    for _ in range(MAX_CHUNKS + 2):
        handle.add_audio(delta)
    handle.finish(None)
    assert handle.dropped_chunks == 2
    assert len([chunk async for chunk in handle.audio()]) == MAX_CHUNKS


async def test_answers_that_nobody_takes_are_bounded() -> None:
    listeners = Listeners()
    listen = event_from_realtime('{"type":"response.listen","session_id":"s","response":{}}')
    assert isinstance(listen, ResponseListen)
    for _ in range(MAX_RESPONSES + 3):
        listeners.publish(listen)
    assert listeners.dropped_responses == 3


async def test_what_a_listener_of_a_client_loses_is_counted_at_the_client() -> None:
    client = DuplexClient("ws://127.0.0.1:1", model="m")
    events = client.events()
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    for number in range(CAPACITY + 4):
        client._take(ConnectionResumed(number))
    assert (await first, client.dropped_events) == (ConnectionResumed(4), 4)


async def test_after_a_gap_an_open_answer_ends_and_what_comes_of_it_is_a_new_one() -> None:
    listeners = Listeners()
    delta = event_from_realtime('{"type":"response.output_audio.delta","response_id":"r","item_id":"i","delta":"AAA="}')
    assert isinstance(delta, AudioDelta)
    taking = listeners.responses()
    listeners.publish(delta)
    before = await anext(taking)
    listeners.publish(ConnectionResumed(1))
    assert not before.finished
    listeners.publish(ConnectionResumed(2, gap=True))
    assert before.finished and [piece async for piece in before.audio()] == [b"\0\0"]
    listeners.publish(delta)
    assert (await anext(taking)) is not before
