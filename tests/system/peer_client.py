"""The peer's `DuplexClient`, as far as its documentation tells what it sends and how it receives.

An independent model of it, made from the written contract: its first frame, the fields of its commands, its
receive rules. It knows nothing of this product's client.

Rule 1. A numbered event at or below the last number is dropped unseen; every other one is delivered, and a
        numbered one is acknowledged at once.
Rule 2. Identity and token are taken from `session.created` and `session.resumed`, if they are delivered.
Rule 3. A resume that is answered by a fatal code is given up; `session.resync_required` drops the token.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

Event = dict[str, Any]

HANDSHAKE_S, CLOSE_S = 30.0, 20.0
FATAL = (
    "invalid_session_resume",
    "session_resume_expired",
    "unsupported_session_resume",
    "invalid_resume_token",
    "session_resume_conflict",
)


class ResumeRefused(Exception):
    """The code of the answer; `fatal`: it is not tried again."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code, self.fatal = code, code in FATAL


class PeerClient:
    def __init__(self, url: str, extra_body: Event | None = None) -> None:
        self.url = f"{url}/v1/realtime?duplex=1&model=loopback&autostart=0"
        self.extra_body = {"auto_response": True, **(extra_body or {})}
        self.session_id, self.token = "", ""
        self.last_seq = 0
        self.delivered: list[Event] = []
        self.dropped: list[Event] = []
        self.tokens: list[str] = []
        """All that were told, in order, whether they were adopted or not."""
        self.ws: ClientConnection
        self._ids = itertools.count(1)
        self._end_ms = 0.0

    # -- what it sends ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Dial, first update, wait for `session.created`."""
        self.ws = await connect(self.url, compression=None, max_size=64 * 2**20)
        await self.send(
            {
                "type": "session.update",
                "session": {
                    "model": "loopback",
                    "modalities": ["audio", "text"],
                    "input_audio_format": "pcm16",
                    "output_audio_format": "pcm16",
                    "sample_rate_hz": 16000,
                    "audio": {"input": {"sample_rate_hz": 16000}, "output": {"sample_rate_hz": 24000}},
                    "turn_detection": None,
                    "extra_body": self.extra_body,
                },
            }
        )
        created = await asyncio.wait_for(self.next("session.created"), HANDSHAKE_S)
        assert created["session"].get("id") or created["session"].get("session_id")
        assert created["resume_token"]

    async def send(self, command: Event) -> str:
        event_id = command.setdefault("event_id", f"evt_{next(self._ids):08x}")
        await self.ws.send(json.dumps(command))
        return str(event_id)

    async def append(self, pcm: bytes, *, is_speech: bool | None = None) -> str:
        duration_ms = len(pcm) / 2 / 16
        self._end_ms += duration_ms
        command: Event = {
            "type": "input_audio_buffer.append",
            "audio": base64.b64encode(pcm).decode(),
            "format": "pcm16",
            "sample_rate_hz": 16000,
            "duration_ms": duration_ms,
            "audio_end_ms": self._end_ms,
        }
        if is_speech is not None:
            command["is_speech"] = is_speech
        return await self.send(command)

    async def commit(self) -> str:
        return await self.send({"type": "input_audio_buffer.commit", "final": True})

    async def heartbeat(self) -> str:
        return await self.send({"type": "session.heartbeat"})

    async def ack_playback(self, response_id: str, played_ms: float, committed_ms: float) -> str:
        cursors = {"played_ms": played_ms, "committed_ms": committed_ms}
        return await self.send({"type": "playback.ack", "response_id": response_id, **cursors})

    async def close(self) -> Event:
        await self.send({"type": "session.close"})
        closed = await asyncio.wait_for(self.next("session.closed"), CLOSE_S)
        await asyncio.wait_for(self.ws.wait_closed(), CLOSE_S)
        return closed

    # -- the connection -----------------------------------------------------------------------------------

    async def cut(self) -> None:
        self.ws.transport.abort()
        await self.ws.wait_closed()

    async def resume(self) -> None:
        """One try. Raises ResumeRefused."""
        self.ws = await connect(self.url, compression=None, max_size=64 * 2**20)
        claim = {
            "session_id": self.session_id,
            "resume_token": self.token,
            "last_received_server_event_seq": self.last_seq,
        }
        await self.send({"type": "session.resume", **claim})
        answer = await asyncio.wait_for(self.next("session.resumed", "session.resync_required", "error"), HANDSHAKE_S)
        if answer["type"] != "session.resumed":
            await asyncio.wait_for(self.ws.wait_closed(), HANDSHAKE_S)
            raise ResumeRefused("resync_required" if answer["type"] != "error" else answer["error"]["code"])

    # -- what it receives -----------------------------------------------------------------------------------

    async def next(self, *types: str) -> Event:
        """Deliver events up to one of these types. Raises ConnectionClosed."""
        while True:
            event = await self.receive()
            if event is not None and (not types or event["type"] in types):
                return event

    async def receive(self) -> Event | None:
        """The next frame, by rules 1 and 2; None: it was dropped."""
        event: Event = json.loads(await asyncio.wait_for(self.ws.recv(), HANDSHAKE_S))
        if event.get("resume_token"):
            self.tokens.append(event["resume_token"])
        seq = event.get("server_event_seq")
        if seq is not None:
            if seq <= self.last_seq:
                self.dropped.append(event)
                return None
            self.last_seq = seq
        self.delivered.append(event)
        self._learn(event)
        if seq is not None:
            # The socket may be closed behind the last events, which are still there to be read.
            with contextlib.suppress(ConnectionClosed):
                await self.send({"type": "session.event_ack", "server_event_seq": seq})
        return event

    def _learn(self, event: Event) -> None:
        if event["type"] in ("session.created", "session.resumed"):
            session = event["session"]
            self.session_id = str(session.get("id") or session.get("session_id") or event.get("session_id"))
            self.token = event["resume_token"]
        elif event["type"] == "session.resync_required":
            self.token = ""

    # -- what it makes of it --------------------------------------------------------------------------------

    def audio_of(self, response_id: str) -> bytes:
        deltas = (e for e in self.delivered if e["type"] == "response.output_audio.delta")
        return b"".join(base64.b64decode(e["delta"]) for e in deltas if e["response_id"] == response_id)

    @property
    def errors(self) -> list[str]:
        return [event["error"]["code"] for event in self.delivered if event["type"] == "error"]
