"""One client of a run: it speaks and listens all the time, adds and deletes items, cancels now and then, comes back
whenever its line is lost, and records everything. Now and then it ends its session and opens another one.

Rule 1. It judges nothing: what it got stands in its recording.
Rule 2. Its commands have names of their own, so that each can be held against its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any, Final

import numpy as np
from chaos.canary import pitch
from chaos.recording import Recorder, recording_of

from duologue.client import (
    AudioFormat,
    ConnectionResumed,
    DuplexClient,
    DuplexClientError,
    DuplexSessionClosedError,
    Event,
    Observer,
    ReconnectPolicy,
    SessionConfig,
)
from duologue.protocol.duplex import ErrorEvent, ItemAdded, ItemDeleted

UNIT_S: Final = 0.08
LISTENS, SPEAKS = 6, 18
CYCLE_S: Final = (LISTENS + SPEAKS) * UNIT_S
SCRIPT_S: Final = 300.0
"""Longer than any session lives."""
TEXT: Final = " ".join(f"word{n}" for n in range(SPEAKS))
MICROPHONE_S: Final = 1.0
"""What could not be sent for longer than this is lost in the microphone."""
KEPT_ITEMS: Final = 5
ANSWERED_S: Final = 30.0
LIFE_S: Final = (20.0, 70.0)
"""Of one session. Those that come later find room where a drain or a fault has made it."""
AGAIN_S: Final = 0.5

POLICY: Final = ReconnectPolicy(max_attempts=60, low_s=0.1, high_s=1.0, deadline_s=60.0)
HANDSHAKE_S: Final = 5.0
INPUT: Final = AudioFormat("pcm16", 16_000)


def config_of(session: int) -> SessionConfig:
    script = [{"listen": LISTENS}, {"speak": {"units": SPEAKS, "text": TEXT}}] * int(SCRIPT_S / CYCLE_S)
    return SessionConfig(
        input_audio=INPUT, extra_body={"loopback": {"script": script, "audio": f"tone:{pitch(session)}"}}
    )


class _Answers(Observer):
    """Which commands still wait for their answer: only to know when a session has come to rest."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self.news = asyncio.Event()

    def sent(self, command: dict[str, Any]) -> None:
        match command["type"]:
            case "conversation.item.create":
                self.waiting.add(f"+{command['item']['id']}")
            case "conversation.item.delete":
                self.waiting.add(f"-{command['item_id']}")

    def received(self, event: Event) -> None:
        match event:
            case ItemAdded():
                self.waiting.discard(f"+{event.item.id}")
            case ItemDeleted():
                self.waiting.discard(f"-{event.item_id}")
            case ErrorEvent() | ConnectionResumed():
                pass
            case _:
                return
        self.news.set()


class Talker:
    """Client number `session` of a run. `open`, then `talk`."""

    def __init__(self, session: int, url: str, folder: Path, seed: int) -> None:
        self._session, self._url, self._folder = session, url, folder
        self._chance = random.Random(f"talker {seed} {session}")
        self._lives = 0
        self._life: _Life

    async def open(self) -> None:
        """Raises DuplexClientError."""
        path = recording_of(self._folder, self._session, self._lives)
        life = _Life(self._session, self._lives, self._url, path, self._chance)
        try:
            await life.client.connect()
        except BaseException:
            life.recorder.close()
            path.unlink()
            raise
        self._life = life
        self._lives += 1

    async def talk(self, until: asyncio.Event) -> None:
        """One session after the other, until it is told to stop."""
        while True:
            await self._life.speak(until)
            await self._life.finish()
            while not until.is_set():
                try:
                    await self.open()
                    break
                except DuplexClientError:  # nothing was promised yet
                    await asyncio.sleep(AGAIN_S)
            else:
                return


class _Life:
    """One session of a talker."""

    def __init__(self, session: int, life: int, url: str, recording: Path, chance: random.Random) -> None:
        self.recorder = Recorder(recording)
        self._answers = _Answers()
        self.client = DuplexClient(
            url,
            model="loopback",
            config=config_of(session),
            reconnect=POLICY,
            handshake_timeout_s=HANDSHAKE_S,
            trace=self.recorder,
        )
        self.client.observe(self._answers)
        self._chance = chance
        self._name = f"item_{session}_{life}"
        self._items: list[str] = []
        self._unit = (2000 * np.sin(np.arange(1280) * 0.3)).astype("<i2").tobytes()

    async def speak(self, until: asyncio.Event) -> None:
        """Until it is told to stop, its time is over, or its session is."""
        over = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(self._chance.uniform(*LIFE_S), over.set)
        ending = asyncio.create_task(until.wait())
        ending.add_done_callback(lambda _: over.set())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._sound(over))
                group.create_task(self._say(over))
        finally:
            timer.cancel()
            ending.cancel()

    async def _sound(self, over: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time
        due = now()
        with contextlib.suppress(DuplexClientError):
            while not over.is_set():
                await self.client.append_audio(self._unit)
                due = max(due + UNIT_S, now() - MICROPHONE_S)
                await asyncio.sleep(max(0.0, due - now()))

    async def _say(self, over: asyncio.Event) -> None:
        with contextlib.suppress(DuplexClientError):
            while not over.is_set():
                await self._one()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), self._chance.uniform(0.3, 1.2))

    async def _one(self) -> None:
        if self._chance.random() < 0.1:
            await self.client.cancel_response()
            return
        item_id = f"{self._name}_{len(self._items)}"
        self._items.append(item_id)
        content = [{"type": "input_text", "text": item_id}]
        await self.client.create_item({"id": item_id, "type": "message", "role": "user", "content": content})
        if len(self._items) > KEPT_ITEMS:
            await self.client.delete_item(self._items[-KEPT_ITEMS - 1])

    async def finish(self) -> None:
        """Wait for what is not answered, come back once more to be told what is covered, and close."""
        with contextlib.suppress(TimeoutError, DuplexClientError):
            async with asyncio.timeout(ANSWERED_S):
                await self._until_answered()
                back = asyncio.create_task(self.client.wait_for("connection.resumed"))
                await asyncio.sleep(0)
                self.recorder.note(dropped=True)  # what follows is no outage
                self.client.drop_connection()
                await back
                await self._until_answered()
        await self.client.close()
        try:
            await self.client.heartbeat()  # raises what ended the session
        except DuplexClientError as error:
            expected = isinstance(error, DuplexSessionClosedError) and error.expected
            self.recorder.note(end=f"{type(error).__name__}: {error}", expected=expected)
        self.recorder.close()

    async def _until_answered(self) -> None:
        while self._answers.waiting:
            self._answers.news.clear()
            await self._answers.news.wait()
