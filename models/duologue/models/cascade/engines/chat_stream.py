"""The stream of a chat-completions API, chunk by chunk: words as they come, function calls put together. Pure.

Rule 1. A call comes in parts, each under its index: the name and the id once, the arguments in pieces. Parts
        without an index (some servers) begin a new call with a name or an id, and go on with the last one else.
Rule 2. Bounded: more calls or longer arguments than the limits are an error of that server.
Rule 3. A call that names no function of the request, or whose arguments are no JSON object, has no name: it is
        passed on as it was written, and never as something that might be carried out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from duologue.model.outputs import ToolCall, Usage
from duologue.models.cascade.engines.language import Ending, LanguageError
from duologue.models.cascade.wire import Ask

MAX_CALLS = 16
MAX_ARGUMENTS_CHARS = 64 * 1024
"""Of all calls of one answer."""
MAX_ID_CHARS = 128


class _Parts:
    """One call, as far as it came."""

    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.arguments = ""


class ChatStream:
    """Reads the chunks of one answer. `said`: where its words go."""

    def __init__(self, ask: Ask, said: Callable[[str], None]) -> None:
        self._names = frozenset(tool.name for tool in ask.tools) if ask.choice != "none" else frozenset()
        self._said = said
        self._calls: dict[int, _Parts] = {}
        self._chars = 0
        self._usage: Usage | None = None
        self.finished = ""
        """The finish reason, once there is one."""

    def take(self, chunk: Mapping[str, Any]) -> None:
        """Raises LanguageError, and AttributeError, TypeError or ValueError for what no such API sends."""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if words := delta.get("content"):
                self._said(words)
            for part in delta.get("tool_calls") or ():
                self._part(part)
            self.finished = choice.get("finish_reason") or self.finished
        if counted := chunk.get("usage"):
            self._usage = Usage(
                input_text_tokens=int(counted.get("prompt_tokens") or 0),
                output_text_tokens=int(counted.get("completion_tokens") or 0),
                cached_tokens=int((counted.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            )

    def ending(self) -> Ending:
        calls = tuple(self._whole(parts) for _, parts in sorted(self._calls.items()))
        return Ending(self.finished != "length", calls, self._usage)

    def _part(self, part: Mapping[str, Any]) -> None:
        function = part.get("function") or {}
        index = part.get("index")
        if index is None:
            begins = bool(part.get("id") or function.get("name")) or not self._calls
            index = len(self._calls) if begins else max(self._calls)
        parts = self._calls.setdefault(int(index), _Parts())
        parts.call_id = parts.call_id or str(part.get("id") or "")
        parts.name = parts.name or str(function.get("name") or "")
        more = function.get("arguments") or ""
        parts.arguments += more if isinstance(more, str) else json.dumps(more)
        self._chars += len(more)
        if len(self._calls) > MAX_CALLS or self._chars > MAX_ARGUMENTS_CHARS:
            raise LanguageError("thinker_failed", "the language model calls more than can be carried out")

    def _whole(self, parts: _Parts) -> ToolCall:
        arguments = parts.arguments.strip() or "{}"
        if parts.name not in self._names or not _is_object(arguments):
            return ToolCall(raw=json.dumps({"name": parts.name, "arguments": parts.arguments}, ensure_ascii=False))
        return ToolCall(parts.name, arguments, parts.call_id if len(parts.call_id) <= MAX_ID_CHARS else "")


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
