"""One session's resumable request: its KV cache stays between appends. For stage workers only.

Rule 1. Everything runs in the host's loop. One append at a time; the others wait in the order they came.
Rule 2. An append is answered token by token, each within `append_timeout_s`. One that is not is aborted, and says so:
        vLLM itself never would.
Rule 3. A request that ended (aborted, too late, broken) is opened anew with the next append: what it had is appended
        again first. Nobody else has to know.
Rule 4. An answer is a row of short appends, so that it can be ended between two and keep its cache. Cancelling the
        task ends it at once and loses the cache.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

import msgspec
from vllm import SamplingParams
from vllm.engine.protocol import StreamingInput
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from duologue.models.vllm_stream.context import Context, ContextFull, Piece
from duologue.models.vllm_stream.host import VllmHost

_log = logging.getLogger("duologue.models.vllm")
_serial = itertools.count()
ABORT_S: Final = 5.0


class StreamError(Exception):
    """The append came to nothing. `code` goes to the session."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Answered(msgspec.Struct, frozen=True):
    """`complete`: the model ended it, not the limit. In tokens: what was read, of that from the cache, and made."""

    complete: bool
    read: int
    cached: int
    made: int


def _nobody(ids: Sequence[int]) -> None:
    """What is made of pieces that are only taken in."""


def _never() -> bool:
    return False


class Stream:
    """`limit`: tokens of its context. See the module."""

    def __init__(self, host: VllmHost, limit: int) -> None:
        self._host = host
        self.context = Context(limit)
        self._lock = asyncio.Lock()
        self.name = ""
        """Of the request that is open, or was last."""
        self._inputs: asyncio.Queue[StreamingInput | None] = asyncio.Queue(1)
        self._outputs: AsyncGenerator[Any, None] | None = None
        self._found = 0
        """Tokens that prefix caching found for the request that was opened last."""

    async def take(self, piece: Piece) -> None:
        """Into the context; nothing is made of it. Raises StreamError."""
        async with self._lock:
            await self._append(piece, 1, 1, 0.0, _nobody, keep_last=False)

    async def answer(
        self,
        piece: Piece,
        max_tokens: int,
        temperature: float,
        told: Callable[[Sequence[int]], None],
        stopped: Callable[[], bool] = _never,
    ) -> Answered:
        """Append, and make an answer behind it. `stopped` is asked between its appends. Raises StreamError."""
        async with self._lock:
            before, lost, left, read = self.context.tokens, self.context.lost, max_tokens, 0
            while True:
                count = min(left, self._host.spec.options.chunk_tokens)
                made, ended, tokens = await self._append(piece, count, left, temperature, told, keep_last=True)
                read = read or before + tokens
                left -= made
                if ended or left <= 0 or stopped():
                    cached = self._found if lost or not before else before
                    return Answered(ended, read, cached, max_tokens - left)
                piece = Piece()

    async def forget(self) -> None:
        """The next append begins an empty context."""
        async with self._lock:
            await self._drop()
            self.context.forget()

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    # -- appends ---------------------------------------------------------------------------------------

    async def _append(
        self,
        piece: Piece,
        count: int,
        room: int,
        temperature: float,
        told: Callable[[Sequence[int]], None],
        *,
        keep_last: bool,
    ) -> tuple[int, bool, int]:
        """Tokens made, whether the model ended it, tokens appended. `room`: what must be left for what is made."""
        try:
            done = await self._appended(piece, count, room, temperature, told, keep_last)
        except StreamError as error:
            self._host.count(error.code)
            raise
        except asyncio.CancelledError:
            self._host.count("cancelled")
            raise
        self._host.count("answered")
        return done

    async def _appended(
        self,
        piece: Piece,
        count: int,
        room: int,
        temperature: float,
        told: Callable[[Sequence[int]], None],
        keep_last: bool,
    ) -> tuple[int, bool, int]:
        piece = self.context.next_piece(piece)
        try:
            prompt, tokens = await self._host.prompts.render(piece)
            self.context.admit(tokens, room)
        except ContextFull as error:
            raise StreamError("context_exhausted", str(error)) from None
        except ValueError as error:
            raise StreamError("bad_append", str(error)) from None
        if self.context.lost:
            self._host.count_reopened()
        for lost in self.context.lost_pieces():
            again, _ = await self._host.prompts.render(lost)
            await self._unit(again, 1, 0.0, _nobody)
        made, ended = await self._unit(prompt, count, temperature, told)
        self.context.appended(piece, tokens, made, keep_last=keep_last and not ended)
        return len(made), ended, tokens

    async def _unit(
        self, prompt: Any, count: int, temperature: float, told: Callable[[Sequence[int]], None]
    ) -> tuple[list[int], bool]:
        """One append, and the tokens that vLLM makes of it; of these a stop token is not told."""
        try:
            return await self._read(prompt, count, temperature, told)
        except TimeoutError:
            await self._drop()
            limit_s = self._host.spec.options.append_timeout_s
            raise StreamError("append_timeout", f"an append was not answered within {limit_s:g} s") from None
        except EngineDeadError as error:
            self._host.died(error)
            raise StreamError("engine_dead", "the language model's engine died") from None
        except (ValueError, VLLMClientError) as error:  # what vLLM itself refuses
            await self._drop()
            raise StreamError("bad_append", str(error)) from None
        except BaseException:
            await self._drop()
            raise

    async def _read(
        self, prompt: Any, count: int, temperature: float, told: Callable[[Sequence[int]], None]
    ) -> tuple[list[int], bool]:
        params = SamplingParams(
            max_tokens=count, temperature=temperature, output_kind=RequestOutputKind.DELTA, detokenize=False
        )
        opened = self._outputs is None
        outputs = self._outputs = self._outputs or self._open(params)
        made: list[int] = []
        limit_s = self._host.spec.options.append_timeout_s
        async with asyncio.timeout(limit_s):
            await self._inputs.put(StreamingInput(prompt=prompt, sampling_params=params))
        while True:
            async with asyncio.timeout(limit_s):
                output = await anext(outputs, None)
            if output is None or output.outputs[0].finish_reason == "abort":
                await self._drop()
                raise StreamError("append_aborted", "the language model's engine gave the request up")
            if opened:
                self._found, opened = int(output.num_cached_tokens or 0), False
            new, reason = list(output.outputs[0].token_ids), output.outputs[0].finish_reason
            made += new
            for token in new[:-1] if reason == "stop" else new:
                told((token,))  # one by one, however many came at once: what is told does not depend on haste
            if reason is not None:
                return made, reason == "stop"

    # -- the request -----------------------------------------------------------------------------------

    def _open(self, params: SamplingParams) -> AsyncGenerator[Any, None]:
        self.name = f"duologue-{next(_serial)}"
        self._inputs = asyncio.Queue(1)
        inputs: AsyncGenerator[Any, None] = self._host.engine.generate(
            self._feed(self._inputs), params, request_id=self.name
        )
        return inputs

    async def _feed(self, inputs: asyncio.Queue[StreamingInput | None]) -> AsyncGenerator[StreamingInput, None]:
        while (given := await inputs.get()) is not None:
            yield given

    async def _drop(self) -> None:
        """End the request, if there is one. It is over when this returns, as far as this side knows."""
        outputs, self._outputs = self._outputs, None
        self.context.lose()
        if outputs is None:
            return
        try:
            async with asyncio.timeout(ABORT_S):
                await self._host.engine.abort(self.name)
                await outputs.aclose()
        except TimeoutError:
            _log.warning("vLLM did not take the end of request %s within %g s", self.name, ABORT_S)
