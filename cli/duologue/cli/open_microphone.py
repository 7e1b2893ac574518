"""A microphone for programs: it never stops, it sends silence when nobody speaks."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from duologue.client import DuplexClient

CHUNK_MS = 80


class OpenMicrophone:
    """Mono PCM16 at the rate of the client's session, in real time."""

    def __init__(self, client: DuplexClient) -> None:
        self._client = client
        self._size = client.config.input_audio.rate_hz * CHUNK_MS // 1000 * 2
        self._waiting = bytearray()
        self._said: deque[tuple[int, asyncio.Future[float]]] = deque()
        self._spoken = 0

    async def say(self, pcm: bytes) -> float:
        """Speak this next. Returns when its last sound has left, with the time (time.monotonic)."""
        self._waiting += pcm
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._said.append((self._spoken + len(self._waiting), done))
        return await done

    async def run(self) -> None:
        """Send until cancelled."""
        due = time.monotonic()
        while True:
            chunk = bytes(self._waiting[: self._size])
            del self._waiting[: self._size]
            await self._client.append_audio(chunk.ljust(self._size, b"\0"))
            self._spoken += len(chunk)
            while self._said and self._said[0][0] <= self._spoken:
                self._said.popleft()[1].set_result(time.monotonic())
            due += CHUNK_MS / 1000
            await asyncio.sleep(max(0.0, due - time.monotonic()))
