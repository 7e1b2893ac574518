"""An OpenAI-compatible chat server of a few lines: a test says what it streams, and sees what it was asked."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any, Self

from duologue.models.qwen3_omni.sounds import write_wav

Chunk = dict[str, Any]
PATIENCE_S = 20.0


def delta(modality: str | None = None, finish: str | None = None, **fields: Any) -> Chunk:
    chunk: Chunk = {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}
    return chunk if modality is None else {**chunk, "modality": modality}


def words(text: str) -> Chunk:
    return delta("text", content=text)


def wav(pcm: bytes, rate_hz: int = 24_000) -> Chunk:
    """Sound as vLLM-Omni streams it."""
    return delta("audio", content=base64.b64encode(write_wav(pcm, rate_hz)).decode())


def end(reason: str = "stop") -> Chunk:
    return delta(finish=reason)


class ChatStub:
    """`status`: of every answer. `chunks`: what is streamed. `holds`: nothing after them, until the client is gone."""

    def __init__(self, *chunks: Chunk | str, status: int = 200, holds: bool = False) -> None:
        self.chunks = chunks
        self.status = status
        self.holds = holds
        self.requests: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.gone = 0
        """Clients that left before the end."""
        self._news = asyncio.Condition()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: bool(holds()))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = next(
                int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
            )
            request = json.loads(await reader.readexactly(size))
            self.headers.append(head)
            await self._tell(lambda: self.requests.append(request))
            writer.write(
                f"HTTP/1.1 {self.status} X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n".encode()
            )
            for chunk in self.chunks:
                writer.write(f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n".encode())
            await writer.drain()
            if self.holds:
                await reader.read()
                await self._tell(self._left)
        except ConnectionError:
            await self._tell(self._left)
        finally:
            writer.close()

    def _left(self) -> None:
        self.gone += 1

    async def _tell(self, change: Callable[[], None]) -> None:
        async with self._news:
            change()
            self._news.notify_all()
