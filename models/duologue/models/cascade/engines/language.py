"""The port to a language model that streams, calls functions and can be cancelled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import msgspec

from duologue.model.outputs import ToolCall, Usage
from duologue.models.cascade.wire import Ask


class LanguageError(Exception):
    """The model could not answer. `code` goes to the session."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Ending(msgspec.Struct, frozen=True):
    """How an answer ended. `complete`: the model stopped by itself, not at the token limit."""

    complete: bool = True
    calls: tuple[ToolCall, ...] = ()
    """The functions that it calls; one that cannot be read has no name."""
    usage: Usage | None = None
    """What it counted, if it did."""


class Listener(Protocol):
    """Who asked. Called from the model's threads, `ended` or `failed` exactly once, unless cancelled."""

    @property
    def cancelled(self) -> bool:
        """The answer is not wanted any more: stop as soon as this is seen."""
        ...

    def said(self, delta: str) -> None: ...

    def ended(self, ending: Ending) -> None: ...

    def failed(self, error: LanguageError) -> None: ...


class LanguageModel(ABC):
    @abstractmethod
    def load(self) -> None:
        """Ready after it. Raises LanguageError or PipelineError."""

    def open(self, place: int) -> None:
        """A session takes this place. Raises LanguageError: there is no room for it."""

    def leave(self, place: int) -> None:
        """It has gone. What it asked for was stopped."""

    def held_tokens(self) -> int | None:
        """Of all sessions, in its caches. None: it does not know."""
        return None

    @abstractmethod
    def start(self, place: int, ask: Ask, listener: Listener) -> None:
        """Begin an answer; does not block. `place` is the session's slot, for its prompt cache."""

    def stop(self, listener: Listener) -> None:
        """`listener.cancelled` has become true."""

    @abstractmethod
    def close(self) -> None: ...
