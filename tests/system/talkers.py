"""Clients that talk without end, each on one socket, and whatever happens to them meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self

from system.running import RunningSystem
from system.wire import UNIT_MS, Event, Wire, append, audio, level, pick, seqs, session_object
from websockets.exceptions import ConnectionClosed

HZ = 441.1
SCRIPT = [{"listen": 3}, {"speak": {"units": 6, "text": "one two three four five six"}}] * 200


class Talker:
    """One session: it sends a unit every 80 ms and reads everything."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._read())]

    @classmethod
    async def open(cls, url: str, script: list[Event] | None = None) -> Self:
        return cls(await Wire.open(url, session_object(script=script or SCRIPT, audio=f"tone:{HZ}")))

    @property
    def log(self) -> list[Event]:
        return self.wire.log

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.wire.send(append(level(6000)))
                await asyncio.sleep(UNIT_MS / 1000)

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.log.append(await self._event())

    async def _event(self) -> Event:
        event = await self.wire.read()
        self.log.pop()  # `read` keeps it too
        return event

    @property
    def completed(self) -> int:
        """Responses that ended well."""
        return sum(done["response"]["status"] == "completed" for done in pick(self.log, "response.done"))

    @property
    def failures(self) -> list[str]:
        """Why others did not."""
        ended = [done["response"] for done in pick(self.log, "response.done")]
        return [done["status_details"]["reason"] for done in ended if done["status"] == "failed"]

    @property
    def spoken(self) -> bytes:
        """All the sound that it was sent."""
        return audio(self.log)

    def check(self) -> None:
        """The socket is open, nothing is missing and nothing came twice."""
        assert self.wire.ws.close_code is None, (self.wire.ws.close_code, self.log[-3:])
        numbers = seqs(self.log)
        assert numbers == list(range(1, len(numbers) + 1))
        assert not pick(self.log, "error", "session.closed", "session.expired"), self.log[-3:]

    async def silence(self) -> None:
        """It sends and reads no more; its socket stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        await self.silence()
        with contextlib.suppress(ConnectionClosed):
            await self.wire.end()


@contextlib.asynccontextmanager
async def talking(system: RunningSystem, count: int) -> AsyncIterator[list[Talker]]:
    """So many of them, each of which has been answered once."""
    talkers = [await Talker.open(system.url) for _ in range(count)]
    try:
        await go_on(talkers)
        yield talkers
    finally:
        await asyncio.gather(*(talker.stop() for talker in talkers), return_exceptions=True)


async def go_on(talkers: list[Talker], more: int = 1, within_s: float = 60.0) -> None:
    """Until each has been answered so many times more. Nothing tells of that but the socket: it is looked at again."""
    due = [talker.completed + more for talker in talkers]
    async with asyncio.timeout(within_s):
        while any(talker.completed < least for talker, least in zip(talkers, due, strict=True)):
            for talker in talkers:
                assert talker.wire.ws.close_code is None, (talker.wire.ws.close_code, talker.log[-3:])
            await asyncio.sleep(0.1)
    for talker in talkers:
        talker.check()
