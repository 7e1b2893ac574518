"""A raw client of the duplex endpoint: it sends JSON and hands out every frame that comes, hiding nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlencode

import dialect_judge
import numpy as np
from websockets.asyncio.client import ClientConnection, connect

Event = dict[str, Any]

#: No test is about speed: a machine that is busy with something else must not make one fail.
PATIENCE_S = 30.0
INPUT_RATE_HZ, OUTPUT_RATE_HZ = 16_000, 24_000
UNIT_MS = 80


_opened: list[Wire] | None = None
"""All of a test, while it is a test that opens them."""


@asynccontextmanager
async def none_left_open() -> AsyncIterator[None]:
    """What is open at the end is cut: a test that failed in the middle leaves its sockets to no other one."""
    global _opened
    _opened = []
    try:
        yield
    finally:
        opened, _opened = _opened, None
        await asyncio.gather(*(wire.cut() for wire in opened))


class Wire:
    """One socket. `log` is everything that was read from it, in order."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.log: list[Event] = []
        asked = ws.request
        assert asked is not None
        self.dialect = dialect_judge.dialect_of(asked.path, dict(asked.headers.raw_items()))
        if _opened is not None:
            _opened.append(self)

    @classmethod
    async def dial(cls, url: str, **query: str) -> Self:
        """Connect to a gateway; nothing is sent yet. The client does not ping: a pong would stand behind all that it
        has not read yet, and the time for that is the machine's."""
        address = f"{url}/v1/realtime?{urlencode({'duplex': '1', **query})}"
        return cls(await connect(address, compression=None, max_size=None, open_timeout=PATIENCE_S, ping_interval=None))

    @classmethod
    async def open(cls, url: str, session: Event, **query: str) -> Self:
        """Connect and open a session, whose `session.created` is the first of the log."""
        wire = await cls.dial(url, autostart="0", **query)
        try:
            await wire.send({"type": "session.update", "session": session})
            await wire.until("session.created")
        except BaseException:
            await wire.cut()
            raise
        return wire

    @classmethod
    async def resume(cls, url: str, session_id: str, token: str, last_seq: int) -> Self:
        """Connect and ask for a session; the answer is not read yet."""
        wire = await cls.dial(url, autostart="0")
        claim = {"session_id": session_id, "resume_token": token, "last_received_server_event_seq": last_seq}
        try:
            await wire.send({"type": "session.resume", **claim})
        except BaseException:
            await wire.cut()
            raise
        return wire

    async def send(self, command: Event) -> None:
        await self.ws.send(json.dumps(command))

    async def read(self) -> Event:
        """The next event. Raises ConnectionClosed."""
        async with asyncio.timeout(PATIENCE_S):
            body = await self.ws.recv()
        event: Event = json.loads(body)
        dialect_judge.judge([body], self.dialect)
        self.log.append(event)
        return event

    async def until(self, *types: str) -> Event:
        """Read up to the next event of one of these types."""
        while (event := await self.read())["type"] not in types:
            assert event["type"] != "error", event
        return event

    async def cut(self) -> None:
        """Abort the TCP connection, without a close frame."""
        self.ws.transport.abort()
        await self.ws.wait_closed()

    async def end(self) -> Event:
        """Close the session and wait until it is over; the terminal event."""
        await self.send({"type": "session.close"})
        closed = await self.until("session.closed")
        await self.ws.wait_closed()
        return closed


def session_object(model: str = "loopback", *, auto: bool = True, **loopback: Any) -> Event:
    """A session that follows a script of the loopback model."""
    return {
        "model": model,
        "modalities": ["audio", "text"],
        "input_audio_format": "pcm16",
        "output_audio_format": "pcm16",
        "sample_rate_hz": INPUT_RATE_HZ,
        "audio": {"input": {"sample_rate_hz": INPUT_RATE_HZ}, "output": {"sample_rate_hz": OUTPUT_RATE_HZ}},
        "turn_detection": None,
        "extra_body": {"auto_response": auto, **({"loopback": loopback} if loopback else {})},
    }


def append(pcm: bytes, **more: Any) -> Event:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode(), **more}


def level(height: int, ms: int = UNIT_MS) -> bytes:
    """Input that is one value throughout, so that it can be told from all other input."""
    return np.full(INPUT_RATE_HZ * ms // 1000, height, "<i2").tobytes()


def seqs(events: Iterable[Event]) -> list[int]:
    return [event["server_event_seq"] for event in events if "server_event_seq" in event]


def pick(events: Iterable[Event], *types: str) -> list[Event]:
    return [event for event in events if event["type"] in types]


def audio(events: Iterable[Event]) -> bytes:
    """The PCM of all audio deltas, in order."""
    return b"".join(base64.b64decode(event["delta"]) for event in pick(events, "response.output_audio.delta"))


def transcript(events: Iterable[Event]) -> str:
    return "".join(event["delta"] for event in pick(events, "response.output_audio_transcript.delta"))


def breaks(pcm: bytes, hz: float) -> list[int]:
    """The samples at which a tone does not go on as a sine of this pitch does: every unit that is lost, doubled
    or foreign leaves some. Of a sine, x[n-1] + x[n+1] = 2 cos(w) x[n], up to rounding."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float64)
    turn = 2 * np.cos(2 * np.pi * hz / OUTPUT_RATE_HZ)
    error = np.abs(samples[:-2] + samples[2:] - turn * samples[1:-1])
    return [int(n) for n in np.flatnonzero(error > 4.0) + 1]
