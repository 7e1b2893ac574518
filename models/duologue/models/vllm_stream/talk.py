"""One session's conversation as its request sees it: the chat's own format around sound, words and answers.

Rule 1. The step's thread hears and sets; the host's loop appends. What goes from one to the other is handed over whole.
Rule 2. What is open is closed before something else begins: a turn of the user, an answer that was cut short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal

from duologue.models.vllm_stream.context import Piece
from duologue.models.vllm_stream.host import VllmHost
from duologue.models.vllm_stream.options import RATE_HZ, TurnOptions
from duologue.models.vllm_stream.speller import Speller
from duologue.models.vllm_stream.stream import Answered, Stream, StreamError
from duologue.models.vllm_stream.wire import SlotConfig, Text

_BYTES: Final = 4
"""Of a sample."""


class Answer:
    """One answer that is asked for. `stopped` is set by the step's thread, and read between appends."""

    def __init__(self, turn_id: int, epoch: int, unit: int) -> None:
        self.turn_id, self.epoch, self.unit = turn_id, epoch, unit
        self.stopped = False


class Talk:
    def __init__(self, host: VllmHost, options: TurnOptions, stream: Stream, config: SlotConfig) -> None:
        self.stream, self.config = stream, config
        self._host, self._options = host, options
        self._heard = bytearray()
        self._lock = asyncio.Lock()
        self._open: Literal["", "user", "answer"] = ""
        self._begun = False
        self._broken: StreamError | None = None
        """Why something of the turn did not get into the context: there is nothing to answer."""

    @property
    def size_bytes(self) -> int:
        return len(self._heard) + self.stream.context.size_bytes

    # -- the step's thread -----------------------------------------------------------------------------

    def hear(self, pcm: bytes) -> bool:
        """Mono float32 at 16 kHz. False: the turn is too long, and its end stays."""
        self._heard += pcm
        over = len(self._heard) - int(self._options.turn_audio_s * RATE_HZ) * _BYTES
        if over > 0:
            del self._heard[:over]
        return over <= 0

    def end_turn(self) -> tuple[bytes, ...]:
        """The sound of the turn, in clips."""
        size = int(self._options.clip_s * RATE_HZ) * _BYTES
        clips = tuple(bytes(self._heard[at : at + size]) for at in range(0, len(self._heard), size))
        self._heard.clear()
        return clips

    def forget_sound(self) -> None:
        """Of a turn that was not ended."""
        self._heard.clear()

    # -- the host's loop -------------------------------------------------------------------------------

    async def sound(self, clips: Sequence[bytes]) -> None:
        """Of the user's turn. Raises StreamError."""
        options = self._options
        async with self._lock:
            for clip in clips:
                before = self._turn_to_user() + options.sound_open
                piece = Piece(self._host.encode(before), "pcm", clip, self._host.encode(options.sound_close))
                await self._take(piece, "user")

    async def message(self, text: Text) -> None:
        """Something written: by the user, or a turn of a conversation that was lost. Raises StreamError."""
        options = self._options
        async with self._lock:
            if text.role == "user":
                await self._take(Piece(self._host.encode(self._turn_to_user() + text.text)), "user")
            elif text.role == "assistant":
                written = self._closed() + options.answer_open + text.text
                await self._take(Piece(self._host.encode(written)), "answer")
            else:
                written = self._closed() + options.system_format.format(text=text.text)
                await self._take(Piece(self._host.encode(written)), "")

    async def answer(self, answer: Answer, told: Callable[[str], None]) -> Answered:
        """Raises StreamError."""
        speller = Speller(self._host.decode)

        def spell(ids: Sequence[int]) -> None:
            text = speller.feed(ids)
            if text:
                told(text)

        async with self._lock:
            if answer.stopped:
                raise StreamError("cancelled", "it was cancelled before it began")
            broken, self._broken = self._broken, None
            if broken is not None:
                raise broken
            config = self.config
            piece = Piece(self._host.encode(self._closed() + self._options.answer_open))
            try:
                answered = await self.stream.answer(
                    piece, config.max_tokens, config.temperature, spell, lambda: answer.stopped
                )
            finally:
                self._begun, self._open = self._begun or self.stream.context.tokens > 0, "answer"
        if rest := speller.finish():
            told(rest)
        return answered

    async def _take(self, piece: Piece, then: Literal["", "user", "answer"]) -> None:
        try:
            await self.stream.take(piece)
        except Exception as error:
            if not isinstance(error, StreamError):
                error = StreamError("engine_error", "the language model's engine failed")
            self._broken = error
            raise
        self._begun, self._open = True, then

    def _turn_to_user(self) -> str:
        return "" if self._open == "user" else self._closed() + self._options.user_open

    def _closed(self) -> str:
        """What ends the turn that is open, or begins the conversation."""
        if not self._begun:
            instructions = self.config.instructions
            return self._options.system_format.format(text=instructions) if instructions else ""
        return self._options.turn_close if self._open else ""
