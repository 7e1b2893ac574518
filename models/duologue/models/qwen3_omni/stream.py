"""The stream of a chat answer, chunk by chunk: words and sound as they come, function calls put together. Pure.

Rule 1. Two ways to send sound are known: `delta.audio` (`data`, `transcript`), and `delta.content` of a chunk whose
        `modality` is `audio` (vLLM-Omni). Words are `delta.content` or the transcript.
Rule 2. A call comes in parts, each under its index. One that cannot be read is passed on as it was written, without a
        name. More calls, or longer ones, than the limits are a fault of that server.
Rule 3. What no such API sends is a `StreamError`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from duologue.model.outputs import ToolCall, Usage
from duologue.models.qwen3_omni.sounds import read_sound

MAX_CALLS: Final = 16
MAX_ARGUMENTS_CHARS: Final = 64 * 1024


class StreamError(Exception):
    """Why an answer cannot go on. `code` goes to the session."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Piece(NamedTuple):
    """Words, or sound (mono PCM16)."""

    text: str = ""
    pcm: bytes = b""
    rate_hz: int = 0


class AnswerStream:
    """`names`: the functions that may be called."""

    def __init__(self, names: Iterable[str], rate_hz: int) -> None:
        self._names = frozenset(names)
        self._rate_hz = rate_hz
        self._odd = b""
        self._calls: dict[int, dict[str, str]] = {}
        self.usage: Usage | None = None
        self.finished = ""
        """The finish reason, once there is one."""

    def take(self, data: str) -> list[Piece]:
        """One event of the stream. Raises StreamError."""
        try:
            chunk = json.loads(data)
            if chunk.get("error"):
                raise StreamError("thinker_failed", "the model's server broke off with an error")
            return list(self._pieces(chunk))
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise StreamError("thinker_failed", f"the stream is not what the API promises: {error}"[:300]) from None

    def _pieces(self, chunk: dict[str, Any]) -> Iterator[Piece]:
        speaks = chunk.get("modality") == "audio"
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            content, sound = delta.get("content"), delta.get("audio") or {}
            if content and speaks:
                yield from self._sound(content)
            elif content:
                yield Piece(text=str(content))
            if words := sound.get("transcript"):
                yield Piece(text=str(words))
            if samples := sound.get("data"):
                yield from self._sound(samples)
            for part in delta.get("tool_calls") or ():
                self._part(part)
            self.finished = choice.get("finish_reason") or self.finished
        if counted := chunk.get("usage"):
            self.usage = _usage(counted)

    def _sound(self, encoded: str) -> Iterator[Piece]:
        try:
            data = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            raise ValueError("the sound is no base64") from None
        if data[:4] == b"RIFF":
            pcm, rate_hz = read_sound(data, self._rate_hz)
        else:
            pcm, rate_hz = self._odd + data, self._rate_hz
            whole = len(pcm) & ~1
            self._odd, pcm = pcm[whole:], pcm[:whole]
        if pcm:
            yield Piece(pcm=pcm, rate_hz=rate_hz)

    def _part(self, part: dict[str, Any]) -> None:
        function = part.get("function") or {}
        index = part.get("index")
        if index is None:  # some servers: a name or an id begins a new call
            begins = bool(part.get("id") or function.get("name")) or not self._calls
            index = len(self._calls) if begins else max(self._calls)
        call = self._calls.setdefault(int(index), {"id": "", "name": "", "arguments": ""})
        call["id"] = call["id"] or str(part.get("id") or "")
        call["name"] = call["name"] or str(function.get("name") or "")
        more = function.get("arguments") or ""
        call["arguments"] += more if isinstance(more, str) else json.dumps(more)
        if (
            len(self._calls) > MAX_CALLS
            or sum(len(one["arguments"]) for one in self._calls.values()) > MAX_ARGUMENTS_CHARS
        ):
            raise StreamError("thinker_failed", "the model calls more than can be carried out")

    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(self._whole(call) for _, call in sorted(self._calls.items()))

    def _whole(self, call: dict[str, str]) -> ToolCall:
        arguments = call["arguments"].strip() or "{}"
        if call["name"] not in self._names or not _is_object(arguments):
            return ToolCall(raw=json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False))
        return ToolCall(call["name"], arguments, call["id"][:128])


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _usage(counted: dict[str, Any]) -> Usage:
    came = counted.get("prompt_tokens_details") or {}
    went = counted.get("completion_tokens_details") or {}
    heard, said = int(came.get("audio_tokens") or 0), int(went.get("audio_tokens") or 0)
    return Usage(
        input_audio_tokens=heard,
        input_text_tokens=max(int(counted.get("prompt_tokens") or 0) - heard, 0),
        output_audio_tokens=said,
        output_text_tokens=max(int(counted.get("completion_tokens") or 0) - said, 0),
        cached_tokens=int(came.get("cached_tokens") or 0),
    )
