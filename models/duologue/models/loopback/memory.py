"""What the loopback model remembers of the sound that it heard: enough to tell two memories apart. SANS-I/O.

A context stands or falls with the sound that made it, so what a session says shows whether the one that was lost with
its worker is the one that it was given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from zlib import crc32


def checksum(units: Iterable[bytes]) -> int:
    """Of these units of sound, float32 at the model's rate, in this order."""
    return _chain(crc32(unit) for unit in units)


def _chain(units: Iterable[int]) -> int:
    value = 0
    for unit in units:
        value = crc32(unit.to_bytes(4, "big"), value)
    return value


class Memory:
    """The last `units` units of the user's own sound; silence that the session made is not his."""

    def __init__(self, units: int, heard: Iterable[int] = ()) -> None:
        self._units: deque[int] = deque(heard, maxlen=units)

    @property
    def heard(self) -> tuple[int, ...]:
        """What another one goes on with."""
        return tuple(self._units)

    def hear(self, pcm: bytes) -> None:
        self._units.append(crc32(pcm))

    def tell(self) -> str:
        """How many units, and their checksum."""
        return f" (heard {len(self._units)}: {_chain(self._units):08x})"
