"""A language model in this process: llama.cpp's server, embedded by xllamacpp.

Rule 1. A call blocks until its answer is over, so each runs in a thread; the server batches them.
Rule 2. The callback's True is the cancellation. It is asked at every token.
Rule 3. A session keeps its place in the server, so its prompt is not read twice.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import xllamacpp as _xllamacpp

from duologue.models.cascade.engines.chat_stream import ChatStream
from duologue.models.cascade.engines.language import Ending, LanguageError, LanguageModel, Listener
from duologue.models.cascade.settings import Thinker
from duologue.models.cascade.wire import Ask, ChatTurn

xllamacpp: Any = _xllamacpp
"""It fills its namespace at run time, which no type checker sees."""
REPEAT_PENALTY = 1.1
"""A model this small otherwise says the same sentence again."""


UBATCH = 256
"""Tokens of prompts that are computed at once: more takes memory and no less time on a CPU."""


class LocalLanguage(LanguageModel):
    def __init__(self, path: Path, options: Thinker) -> None:
        self._path = path
        self._options = options
        self._server: Any = None
        self._pool = ThreadPoolExecutor(options.parallel, thread_name_prefix="cascade-thinker")

    def load(self) -> None:
        options = self._options
        params = xllamacpp.CommonParams()
        params.model.path = str(self._path)
        params.n_ctx = options.context * options.parallel
        params.n_parallel = options.parallel
        params.cpuparams.n_threads = options.threads
        params.cpuparams_batch.n_threads = options.threads
        # The embedded server also opens a port of this machine; nobody is to use it.
        params.api_keys = [secrets.token_urlsafe(32)]
        # Prompts are kept in their places, not a second time in memory.
        params.cache_ram_mib = 0
        params.cache_idle_slots = False
        params.n_ubatch = UBATCH
        params.verbosity = -1
        try:
            self._server = xllamacpp.Server(params)
        except Exception as error:
            raise LanguageError("thinker_unavailable", f"{self._path.name} could not be loaded: {error}") from error
        hello = _Waiter()
        self._answer(0, Ask((ChatTurn("user", "Hello."),), 2, 0.0), hello)
        if hello.error is not None:
            raise hello.error

    def start(self, place: int, ask: Ask, listener: Listener) -> None:
        self._pool.submit(self._answer, place % self._options.parallel, ask, listener)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._server = None

    def _answer(self, place: int, ask: Ask, listener: Listener) -> None:
        """In a thread of the pool."""
        stream = _Stream(ask, listener)
        if listener.cancelled:
            return
        request = {
            "messages": [{"role": turn.role, "content": turn.content} for turn in ask.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "repeat_penalty": REPEAT_PENALTY,
            "cache_prompt": True,
            "id_slot": place,
        }
        try:
            self._server.handle_chat_completions(request, stream.take)
        except Exception as error:
            stream.error = LanguageError("thinker_failed", str(error))
        if listener.cancelled:
            return
        if stream.error is not None:
            listener.failed(stream.error)
        elif not stream.words.finished:
            listener.failed(LanguageError("thinker_failed", "the language model stopped without an answer"))
        else:
            listener.ended(stream.words.ending())


class _Stream:
    """Reads the server's chunks for one answer."""

    def __init__(self, ask: Ask, listener: Listener) -> None:
        self._listener = listener
        self.words = ChatStream(ask, listener.said)
        self.error: LanguageError | None = None

    def take(self, chunks: Any) -> bool:
        """True cancels."""
        for chunk in chunks if isinstance(chunks, list) else [chunks]:
            self._read(json.loads(chunk) if isinstance(chunk, (bytes, str)) else chunk)
        return self._listener.cancelled or self.error is not None

    def _read(self, chunk: Mapping[str, Any]) -> None:
        problem = chunk.get("error") or (chunk if "message" in chunk and "choices" not in chunk else None)
        if problem is not None:
            message = str(problem.get("message", problem)) if isinstance(problem, Mapping) else str(problem)
            code = "context_exhausted" if "context" in message else "thinker_failed"
            self.error = LanguageError(code, message)
            return
        self.words.take(chunk)


class _Waiter:
    """The listener of the first answer, at the start."""

    cancelled = False

    def __init__(self) -> None:
        self.error: LanguageError | None = None
        self.done = Event()

    def said(self, delta: str) -> None:
        """What it says does not matter."""

    def ended(self, ending: Ending) -> None:
        self.done.set()

    def failed(self, error: LanguageError) -> None:
        self.error = error
        self.done.set()
