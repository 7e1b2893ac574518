"""The OpenAI-compatible server that has the model, asked over httpx.

Rule 1. One event loop in one thread serves all answers. Cancelling an answer closes its HTTP response: that server sees
        it and stops.
Rule 2. What is read of an answer and not taken yet is bounded: beyond it the response is not read on.
Rule 3. The key is in no message and no log line. Where the server is and what it answered is in the log at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any, Final, Protocol

import httpx

from duologue.model.loop_thread import LoopThread
from duologue.models.qwen3_omni.heads import SlotConfig
from duologue.models.qwen3_omni.options import Options
from duologue.models.qwen3_omni.stream import AnswerStream, Piece, StreamError
from duologue.models.qwen3_omni.talk import Turn, messages

_log = logging.getLogger("duologue.models.qwen3_omni")

MAX_WAITING: Final = 256
"""Pieces of one answer that were read and not taken yet."""


class Asker(Protocol):
    """Who asked; called in the loop's thread. `ended` or `failed` comes once, unless it is cancelled."""

    def said(self, piece: Piece) -> None: ...

    def ended(self, stream: AnswerStream) -> None: ...

    def failed(self, error: StreamError) -> None: ...

    def waiting(self) -> int:
        """How many pieces were not taken yet."""
        ...

    async def room(self) -> None:
        """Until some were."""


class ChatServer:
    def __init__(self, options: Options, api_key: str, name: str) -> None:
        self._options = options
        self._url = options.url.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._thread = LoopThread(name)
        self.loop = self._thread.loop
        self._client: httpx.AsyncClient

    def start(self) -> None:
        """The server is not asked: it may come up later, and an answer that fails says so."""
        timeout = httpx.Timeout(self._options.timeout_s, connect=self._options.connect_timeout_s)
        self._client = httpx.AsyncClient(headers=self._headers, timeout=timeout)
        self._thread.start()

    def ask(self, config: SlotConfig, turns: tuple[Turn, ...], results: dict[str, str], asker: Asker) -> Future[None]:
        """Begin an answer; cancelling the future stops it."""
        return self._thread.submit(self._answer(config, turns, results, asker))

    def close(self) -> None:
        self._thread.close(self._client.aclose() if self._thread.started else None)

    async def _answer(self, config: SlotConfig, turns: tuple[Turn, ...], results: dict[str, str], asker: Asker) -> None:
        names = [str((tool.get("function") or tool).get("name")) for tool in config.tools]
        stream = AnswerStream(names, self._options.output_rate_hz)
        try:
            body = await asyncio.to_thread(request_body, self._options, config, turns, results)
            async for piece in self._pieces(body, stream):
                asker.said(piece)
                while asker.waiting() > MAX_WAITING:
                    await asker.room()
        except StreamError as error:
            asker.failed(error)
        except httpx.TimeoutException:
            asker.failed(StreamError("thinker_timeout", "the model's server did not answer in time"))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            _log.warning("%s: %s", self._url, type(error).__name__)
            asker.failed(StreamError("thinker_unavailable", "the model's server cannot be reached"))
        else:
            asker.ended(stream)

    async def _pieces(self, body: dict[str, Any], stream: AnswerStream) -> AsyncIterator[Piece]:
        async with self._client.stream("POST", self._url, json=body) as response:
            if response.status_code != 200:
                _log.warning("%s answered with status %d", self._url, response.status_code)
                code = "thinker_unavailable" if response.status_code >= 500 else "thinker_failed"
                raise StreamError(code, f"the model's server answered with status {response.status_code}")
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                for piece in stream.take(data):
                    yield piece
        if not stream.finished:
            raise StreamError("thinker_failed", "the model's server broke off in the middle")


def request_body(
    options: Options, config: SlotConfig, turns: tuple[Turn, ...], results: dict[str, str]
) -> dict[str, Any]:
    """The chat request of one answer."""
    body: dict[str, Any] = {
        **config.extra_body,
        "model": options.model,
        "messages": messages(config.instructions, turns, results),
        "stream": True,
        "max_tokens": config.max_tokens,
        "modalities": ["text", "audio"] if config.speaks else ["text"],
    }
    if config.speaks:
        voice = {"voice": config.voice} if config.voice else {}
        body["audio"] = {"format": "pcm16", **voice}
    if config.temperature is not None:
        body["temperature"] = config.temperature
    if options.usage:
        body["stream_options"] = {"include_usage": True}
    if config.tools:
        body["tools"] = [_tool(tool) for tool in config.tools]
        if config.tool_choice is not None:
            body["tool_choice"] = _choice(config.tool_choice)
    return body


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """The realtime spelling of a function is flat."""
    if "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str) or "function" in choice:
        return choice
    return {"type": "function", "function": {"name": choice.get("name")}}
