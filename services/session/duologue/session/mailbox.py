"""A session's mailbox: facts in the order they came, bounded.

Rule 1. Control is never shed. Media (audio and frames of a client) is shed first: the client is told
        `input_backpressure` in its place, in order.
Rule 2. Control that does not fit means that the session no longer works itself off: it is closed as broken.

The mailbox is empty most of the time: a fact that meets an idle runner is handled at once. It fills while
the runner performs effects that answer at once.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

from duologue.protocol.duplex import AppendAudio
from duologue.session.core.commands import FromClient, SessionCommand

MAX_FACTS: Final = 4096


class Taken(Enum):
    """What became of a fact."""

    YES = "yes"
    SHED = "shed"
    """Media, and there is no room for media: tell the client."""
    FULL = "full"
    """No room even for control."""


class Mailbox:
    """See the module. One thread."""

    __slots__ = ("_facts", "_max_facts", "_max_media", "media")

    def __init__(self, max_facts: int = MAX_FACTS) -> None:
        """Media may take half of `max_facts`."""
        self._facts: deque[SessionCommand] = deque()
        self._max_facts = max_facts
        self._max_media = max_facts // 2
        self.media = 0

    def __len__(self) -> int:
        return len(self._facts)

    def put(self, fact: SessionCommand) -> Taken:
        if len(self._facts) >= self._max_facts:
            return Taken.SHED if is_media(fact) and self.media else Taken.FULL
        if is_media(fact):
            if self.media >= self._max_media:
                return Taken.SHED
            self.media += 1
        self._facts.append(fact)
        return Taken.YES

    def take(self) -> SessionCommand:
        """The oldest fact. Raises IndexError when there is none."""
        fact = self._facts.popleft()
        if self.media and is_media(fact):
            self.media -= 1
        return fact

    def clear(self) -> None:
        self._facts.clear()
        self.media = 0


def is_media(fact: SessionCommand) -> bool:
    return type(fact) is FromClient and type(fact.command) is AppendAudio
