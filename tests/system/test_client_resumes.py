"""`DuplexClient` loses its connection again and again: it misses nothing, and what it had sent is applied once."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import numpy as np
import pytest
from system.conftest import TwoGateways
from system.wire import PATIENCE_S, UNIT_MS, breaks, level

from duologue.client import AudioFormat, DuplexClient, Event, ReconnectPolicy, SessionConfig
from duologue.client.presets import loopback
from duologue.protocol.duplex import ErrorEvent, ItemAdded

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

TONE_HZ = 443.1
QUICKLY = ReconnectPolicy(max_attempts=8, low_s=0.05, high_s=1.0)
UNIT_BYTES = 24_000 * UNIT_MS // 1000 * 2


def seeded() -> random.Random:
    seed = int(os.environ.get("DUOLOGUE_SEED") or random.randrange(2**32))
    print(f"DUOLOGUE_SEED={seed}")
    return random.Random(seed)


def cut_over(client: DuplexClient, urls: tuple[str, ...]) -> None:
    """Cut the connection; the next one is to the other gateway. What is sent before the client notices is lost."""
    here, _, query = client.url.partition("/v1/")
    client.url = f"{urls[1 - urls.index(here)]}/v1/{query}"
    client.drop_connection()


async def cut_now_and_then(client: DuplexClient, urls: tuple[str, ...], times: int, chance: random.Random) -> None:
    for _ in range(times):
        await asyncio.sleep(chance.uniform(0.1, 0.5))
        back = asyncio.create_task(client.wait_for("connection.resumed"))
        await asyncio.sleep(0)
        cut_over(client, urls)
        await back


async def test_an_answer_is_heard_whole(served: TwoGateways) -> None:
    chance = seeded()
    units = 50
    config = loopback([{"speak": {"units": units, "text": "one two three"}}, {"listen": 1}], audio=f"tone:{TONE_HZ}")

    async def one() -> None:
        client = DuplexClient(served.urls[0], model="loopback", config=config, reconnect=QUICKLY)
        async with client:
            await client.append_audio(level(4000))
            cutting = asyncio.create_task(cut_now_and_then(client, served.urls, 4, chance))
            answer = await anext(client.responses())
            sound = b"".join([piece async for piece in answer.audio()])
            await cutting
            assert (answer.status, answer.transcript) == ("completed", "one two three")
            assert len(sound) == units * UNIT_BYTES and breaks(sound, TONE_HZ) == []

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(one())


class Listener:
    """Everything that a client tells, from before its first command on."""

    def __init__(self, client: DuplexClient) -> None:
        self.events: list[Event] = []
        self._client = client
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for event in self._client.events():
            self.events.append(event)
            self._news.set()

    def added(self) -> list[str]:
        return [event.item.id for event in self.events if isinstance(event, ItemAdded)]

    async def until_added(self, item_id: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while item_id not in self.added():
                self._news.clear()
                await self._news.wait()

    async def __aenter__(self) -> Listener:
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self._task


async def test_items_sent_while_offline_are_there_once_and_in_order(served: TwoGateways) -> None:
    chance = seeded()
    config = SessionConfig(extra_body={"loopback": {"script": [{"listen": 1}]}})
    names = [f"item_{n}" for n in range(400)]
    cuts = set(chance.sample(names[10:-50:10], 6))
    async with (
        DuplexClient(served.urls[0], model="loopback", config=config, reconnect=QUICKLY) as client,
        Listener(client) as listener,
    ):
        for name in names:
            if name in cuts:
                cut_over(client, served.urls)
            await client.send(user_item(name))
            await asyncio.sleep(0.002)
        await listener.until_added(names[-1])
    assert listener.added() == names
    assert not [event for event in listener.events if isinstance(event, ErrorEvent)]
    assert client.resumes == len(cuts)


def user_item(name: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": name}]
    item = {"id": name, "type": "message", "role": "user", "content": content}
    return {"type": "conversation.item.create", "item": item}


async def test_sound_sent_while_offline_is_heard_once_and_in_order(served: TwoGateways) -> None:
    """The model echoes. Each unit that is sent has a level of its own; silence is the session's own, for the time
    in which it had nothing to feed the model with."""
    chance = seeded()
    config = SessionConfig(
        input_audio=AudioFormat("pcm16", 16_000),
        extra_body={"loopback": {"script": [{"speak": {"units": 4000, "text": ""}}], "audio": "echo"}},
    )
    levels = [1000 + 100 * n for n in range(100)]
    cuts = set(chance.sample(levels[5:-20:5], 5))
    async with DuplexClient(served.urls[0], model="loopback", config=config, reconnect=QUICKLY) as client:
        for height in levels:
            if height in cuts:
                cut_over(client, served.urls)
            await client.append_audio(level(height))
            await asyncio.sleep(UNIT_MS / 2000)
        await client.append_audio(level(-9000))
        heard = await _echoes(client)
    assert heard == levels


async def _echoes(client: DuplexClient) -> list[int]:
    """The levels that come back, in order, up to the mark -9000."""
    heard: list[int] = []
    answer = await anext(client.responses())
    async with asyncio.timeout(PATIENCE_S):
        async for piece in answer.audio():
            samples = np.frombuffer(piece, "<i2")
            height = round(float(samples[len(samples) // 2]), -2)
            if height < 0:
                return heard
            heard += [int(height)] if height else []
    raise AssertionError("the mark did not come back")
