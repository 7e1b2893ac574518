"""Commands that no confirmed checkpoint covers: what an heir of the shard must be sent again. SANS-I/O.

Rule 1. Bounded in bytes: at the bound the socket is not read until the shard covers some, and the shard is
        asked for a checkpoint. One command larger than the bound is kept when nothing else is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from duologue.bus.link import Frame
from duologue.fence import CommandNo

LIMIT_BYTES: Final = 4 * 1024 * 1024
_OVERHEAD_BYTES: Final = 128


class Kept(msgspec.Struct, frozen=True, gc=False):
    """One command as it was forwarded."""

    no: CommandNo
    command: bytes
    frames: Sequence[Frame]
    size: int


class Uncovered:
    """In the order of their numbers."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._kept: deque[Kept] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept)

    @property
    def full(self) -> bool:
        """No further command may be forwarded until `cover` made room."""
        return self.bytes >= self._limit

    def keep(self, no: CommandNo, command: bytes, frames: Sequence[Frame]) -> None:
        """Called once for each command that was forwarded, in order."""
        size = _OVERHEAD_BYTES + len(command)
        for frame in frames:
            size += len(frame)
        self._kept.append(Kept(no, command, frames, size))
        self.bytes += size

    def after(self, no: CommandNo) -> Kept | None:
        """The first command behind this one."""
        return next((kept for kept in self._kept if kept.no > no), None)

    def cover(self, through: CommandNo) -> bool:
        """Forget what is covered. True: the bound was reached before and is not any more."""
        was_full = self.full
        kept = self._kept
        while kept and kept[0].no <= through:
            self.bytes -= kept.popleft().size
        return was_full and not self.full

    def clear(self) -> None:
        self._kept.clear()
        self.bytes = 0
