"""A language model in this process's vLLM: each session's conversation is one resumable request, kept between turns.

Rule 1. What the request has read and said stays in its cache: a turn appends its new text and nothing else.
Rule 2. An answer that was not heard as it was made (a barge-in, a limit of sentences), and a history that lost its
        oldest turns, make another conversation. The cache cannot go back, so the request is opened anew with it.
Rule 3. A session's whole context is set aside when it opens, or it is refused. An answer that does not come is ended
        by the deadline of its append.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from duologue.model.outputs import Usage
from duologue.models.cascade.engines.language import Ending, LanguageError, LanguageModel, Listener
from duologue.models.cascade.settings import Thinker
from duologue.models.cascade.wire import Ask
from duologue.models.vllm_stream.admission import NoRoom
from duologue.models.vllm_stream.context import Piece
from duologue.models.vllm_stream.conversation import Held, Turn, follows, tail
from duologue.models.vllm_stream.host import HostError, HostSpec, VllmHost
from duologue.models.vllm_stream.speller import Speller
from duologue.models.vllm_stream.stream import Answered, Stream, StreamError

_log = logging.getLogger("duologue.models.cascade")
_HELLO: Final = (("user", "Hello."),)
_CODES: Final = {
    "append_timeout": "thinker_timeout",
    "append_aborted": "thinker_failed",
    "bad_append": "thinker_failed",
    "engine_dead": "thinker_unavailable",
}


class _Talk:
    """One session's request. `held` is the loop's alone."""

    def __init__(self, host: VllmHost, options: Thinker) -> None:
        self.stream = Stream(host, options.context)
        self.held: Held | None = None
        self.lock = asyncio.Lock()


class VllmLanguage(LanguageModel):
    """`places`: sessions at once."""

    def __init__(self, options: Thinker, places: int) -> None:
        self._options = options
        self._host = VllmHost(HostSpec(options.model_path, places, options.context, options.vllm))
        self._mark = f"said-{secrets.token_hex(8)}"
        self._talks: dict[int, _Talk] = {}
        self._running: dict[int, Future[None]] = {}

    def load(self) -> None:
        try:
            self._host.load()
            self._host.submit(self._hello()).result()
        except HostError as error:
            raise LanguageError("thinker_unavailable", str(error)) from error
        except StreamError as error:
            raise LanguageError("thinker_unavailable", error.message) from error

    def open(self, place: int) -> None:
        try:
            self._host.admission.take(place, self._options.context)
        except NoRoom as error:
            raise LanguageError("resource_exhausted", str(error)) from None
        self._talks[place] = _Talk(self._host, self._options)

    def leave(self, place: int) -> None:
        talk = self._talks.pop(place, None)
        if talk is not None:
            self._host.submit(talk.stream.close())
            self._host.admission.give(place)

    def held_tokens(self) -> int:
        return sum(talk.stream.context.tokens for talk in self._talks.values())

    def start(self, place: int, ask: Ask, listener: Listener) -> None:
        future = self._host.submit(self._answer(self._talks[place], ask, listener))
        self._running[id(listener)] = future
        future.add_done_callback(lambda _: self._running.pop(id(listener), None))

    def stop(self, listener: Listener) -> None:
        future = self._running.get(id(listener))
        if future is not None:
            future.cancel()

    def close(self) -> None:
        self._host.close(self._leave_all())

    async def _leave_all(self) -> None:
        for future in list(self._running.values()):
            future.cancel()
        for talk in self._talks.values():
            await talk.stream.close()

    async def _hello(self) -> None:
        stream = Stream(self._host, self._options.context)
        await stream.answer(Piece(self._host.encode(self._written(_HELLO))), 2, 0.0, lambda ids: None)
        await stream.close()

    # -- answers, in the host's loop -------------------------------------------------------------------

    async def _answer(self, talk: _Talk, ask: Ask, listener: Listener) -> None:
        try:
            async with talk.lock:
                answered = await self._made(talk, ask, listener)
        except StreamError as error:
            listener.failed(LanguageError(_CODES.get(error.code, error.code), error.message))
        except Exception as error:  # a chat template refuses by whatever it raises
            _log.warning("the chat template of %s: %s: %s", self._options.model_path, type(error).__name__, error)
            listener.failed(LanguageError("thinker_failed", "the conversation cannot be told to the language model"))
        else:
            usage = Usage(
                input_text_tokens=answered.read, output_text_tokens=answered.made, cached_tokens=answered.cached
            )
            listener.ended(Ending(answered.complete, usage=usage))

    async def _made(self, talk: _Talk, ask: Ask, listener: Listener) -> Answered:
        """Raises StreamError."""
        turns = tuple((turn.role, turn.content) for turn in ask.messages)
        piece = await self._piece(talk, turns)
        talk.held = None  # until it is known what was said
        speller, said = Speller(self._host.decode), list[str]()

        def tell(text: str) -> None:
            if text:
                said.append(text)
                listener.said(text)

        answered = await talk.stream.answer(
            piece, ask.max_tokens, ask.temperature, lambda ids: tell(speller.feed(ids)), lambda: listener.cancelled
        )
        tell(speller.finish())
        if not listener.cancelled:
            talk.held = Held(turns, "".join(said))
        return answered

    async def _piece(self, talk: _Talk, turns: tuple[Turn, ...]) -> Piece:
        """What is appended: the end of the conversation, or all of it to an empty context."""
        known = follows(talk.held, turns)
        rest = tail(turns, known, self._written, self._mark) if known else None
        if rest is not None:
            piece = Piece(self._host.encode(rest))
            if talk.stream.context.fits(len(piece.before) + self._options.max_tokens):
                return piece
        await talk.stream.forget()
        return Piece(self._host.encode(self._written(turns)))

    def _written(self, turns: Sequence[Turn]) -> str:
        messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
        text: str = self._host.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._options.template
        )
        return text
