"""What one shard has no credit for now: kept, in order for each session, within bounds. SANS-I/O.

The bounds are per session and per shard, so neither a session that is not read nor a shard that stands still
takes memory without end; what does not fit fails its unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from duologue.bus.messages import AnyMessage

MAX_MESSAGES: Final = 256
"""Of one session."""

Kept = tuple[AnyMessage, Sequence[bytes]]


class Outbox:
    """The kept messages of one link, by session. `max_bytes` is for all of them together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: dict[str, deque[Kept]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        return self._bytes

    def holds(self, session_id: str) -> bool:
        """Something of this session is kept: what is new must wait behind it."""
        return session_id in self._kept

    def keep(self, session_id: str, message: AnyMessage, frames: Sequence[bytes]) -> bool:
        """False: it does not fit, and was not taken."""
        size = _size(frames)
        kept = self._kept.get(session_id)
        if self._bytes + size > self._max_bytes or (kept is not None and len(kept) >= MAX_MESSAGES):
            return False
        if kept is None:
            kept = self._kept[session_id] = deque()
        kept.append((message, frames))
        self._bytes += size
        return True

    def drain(self, send: Callable[[AnyMessage, Sequence[bytes]], bool]) -> bool:
        """Send what is kept, session by session. False: `send` refused before all was gone."""
        while self._kept:
            session_id, kept = next(iter(self._kept.items()))
            while kept:
                message, frames = kept[0]
                if not send(message, frames):
                    return False
                kept.popleft()
                self._bytes -= _size(frames)
            del self._kept[session_id]
        return True

    def forget(self, session_id: str) -> None:
        """What is kept for this session means nothing any more."""
        for _, frames in self._kept.pop(session_id, ()):
            self._bytes -= _size(frames)


def _size(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames))
