"""A language model at an OpenAI-compatible URL, streamed by httpx.

Rule 1. One event loop in one thread serves all answers. Cancelling closes the connection of that answer:
        the server sees it and stops.
Rule 2. The key comes from an environment variable and is in no message and no log line. Where the server is and
        what it answered is in the log at most: an error goes to whoever is talking.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import Future
from typing import Any

import httpx
import msgspec

from duologue.model.loop_thread import LoopThread
from duologue.models.cascade.engines.chat_stream import ChatStream
from duologue.models.cascade.engines.language import Ending, LanguageError, LanguageModel, Listener
from duologue.models.cascade.settings import Thinker
from duologue.models.cascade.wire import Ask, ChatTurn, Tool

_log = logging.getLogger("duologue.models.cascade")

CONNECT_S = 5.0


class RemoteLanguage(LanguageModel):
    def __init__(self, options: Thinker, api_key: str) -> None:
        self._options = options
        self._url = options.url.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._thread = LoopThread("cascade-thinker")
        self._running: dict[int, Future[None]] = {}
        self._client: httpx.AsyncClient

    def load(self) -> None:
        """The URL is not asked: it may come up later, and an answer that fails says so."""
        timeout = httpx.Timeout(self._options.timeout_s, connect=CONNECT_S)
        self._client = httpx.AsyncClient(headers=self._headers, timeout=timeout)
        self._thread.start()

    def start(self, place: int, ask: Ask, listener: Listener) -> None:
        future = self._thread.submit(self._answer(ask, listener))
        self._running[id(listener)] = future
        future.add_done_callback(lambda _: self._running.pop(id(listener), None))

    def stop(self, listener: Listener) -> None:
        future = self._running.get(id(listener))
        if future is not None:
            future.cancel()

    def close(self) -> None:
        self._thread.close(self._client.aclose() if self._thread.started else None)

    async def _answer(self, ask: Ask, listener: Listener) -> None:
        try:
            ending = await self._stream(ask, listener)
        except LanguageError as error:
            listener.failed(error)
        except httpx.TimeoutException:
            listener.failed(LanguageError("thinker_timeout", "the language model did not answer in time"))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Where it is and what it said is for the operator's log; this goes to whoever is talking.
            _log.warning("%s: %s", self._url, type(error).__name__)
            listener.failed(LanguageError("thinker_unavailable", "the language model cannot be reached"))
        else:
            listener.ended(ending)

    async def _stream(self, ask: Ask, listener: Listener) -> Ending:
        stream = ChatStream(ask, listener.said)
        async with self._client.stream("POST", self._url, json=self._request(ask)) as response:
            if response.status_code != 200:
                _log.warning("%s answered with status %d", self._url, response.status_code)
                code = "thinker_unavailable" if response.status_code >= 500 else "thinker_failed"
                raise LanguageError(code, f"the language model's server answered with status {response.status_code}")
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return stream.ending()
                _read(data, stream)
        if not stream.finished:
            raise LanguageError("thinker_failed", "the language model's server broke off in the middle")
        return stream.ending()

    def _request(self, ask: Ask) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self._options.model,
            "messages": [_message(turn) for turn in ask.messages],
            "stream": True,
            "max_tokens": ask.max_tokens + ask.call_tokens,
            "temperature": ask.temperature,
        }
        if self._options.usage:
            request["stream_options"] = {"include_usage": True}
        if ask.tools:
            request["tools"] = [{"type": "function", "function": _function(tool)} for tool in ask.tools]
            if ask.choice:
                request["tool_choice"] = _choice(ask.choice)
        return request


def _message(turn: ChatTurn) -> dict[str, Any]:
    if turn.role == "tool":
        return {"role": "tool", "tool_call_id": turn.call_id, "content": turn.content}
    if turn.calls:
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
        return {"role": turn.role, "content": turn.content or None, "tool_calls": calls}
    if turn.images:
        parts: list[dict[str, Any]] = [{"type": "text", "text": turn.content}] if turn.content else []
        parts += [{"type": "image_url", "image_url": {"url": url}} for url in turn.images]
        return {"role": turn.role, "content": parts}
    return {"role": turn.role, "content": turn.content}


def _function(tool: Tool) -> dict[str, Any]:
    told: dict[str, Any] = {"name": tool.name}
    if tool.description:
        told["description"] = tool.description
    if tool.schema:
        told["parameters"] = msgspec.json.decode(tool.schema)
    return told


def _choice(choice: str) -> str | dict[str, Any]:
    if not choice.startswith("="):
        return choice
    return {"type": "function", "function": {"name": choice[1:]}}


def _read(data: str, stream: ChatStream) -> None:
    """One event of the stream. Raises LanguageError."""
    try:
        chunk: Any = json.loads(data)
        if chunk.get("error"):
            raise LanguageError("thinker_failed", "the language model's server broke off with an error")
        stream.take(chunk)
    except (ValueError, AttributeError, TypeError) as error:
        raise LanguageError("thinker_failed", f"the stream is not what the API promises: {error}") from None
