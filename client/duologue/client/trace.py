"""The wire as it was: every frame of a session with its time, to be read by a person or a tool afterwards.

    trace = DuplexTrace()
    async with DuplexClient(url, model="cascade", trace=trace) as client: ...
    trace.write("session.jsonl")

Rule 1. Bounded in entries and in bytes: the oldest go, and are counted.
Rule 2. Media is not kept: of sound and pictures there are the size and a digest, so that two traces can be compared.
Rule 3. What opens doors is not kept: tokens and keys are left out.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

Direction = Literal[">", "<"]

MAX_ENTRIES: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024
#: Where media is, whatever the event; `delta` is media in an audio delta only.
_MEDIA: Final = frozenset({"audio", "video_frames", "image_url", "ref_audio"})
_AUDIO_DELTAS: Final = frozenset({"response.output_audio.delta", "response.audio.delta"})
_SECRET: Final = frozenset({"resume_token", "client_secret", "api_key", "authorization"})
_LONG: Final = 64
"""Media shorter than this stays: `item.content[].audio` may be null, "audio" is also a table of formats."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class TraceEntry(msgspec.Struct, frozen=True):
    """One frame. `at_ms` counts from the first one; `size` is that of the frame on the wire, in bytes."""

    at_ms: float
    direction: Direction
    type: str
    size: int
    frame: dict[str, Any]
    """The frame without media and secrets."""
    seq: int | None = None


class DuplexTrace:
    """Pass it to a client as `trace`. One for each session."""

    def __init__(
        self,
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_bytes` counts what is kept, as JSON. `clock`: seconds."""
        self.dropped = 0
        """Entries that fell out of the bound."""
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._clock = clock
        self._began: float | None = None

    def __call__(self, direction: str, frame: str) -> None:
        """Take one frame: ">" from the client, "<" from the server."""
        now = self._clock()
        if self._began is None:
            self._began = now
        line = _encode(_entry(round((now - self._began) * 1000, 3), ">" if direction == ">" else "<", frame))
        self._lines.append(line)
        self._bytes += len(line)
        while self._bytes > self._max_bytes or len(self._lines) > self._max_entries:
            self._bytes -= len(self._lines.popleft())
            self.dropped += 1

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[TraceEntry]:
        return (msgspec.json.decode(line, type=TraceEntry) for line in tuple(self._lines))

    def jsonl(self) -> str:
        """One JSON object a line, oldest first."""
        return "".join(line.decode() + "\n" for line in self._lines)

    def write(self, path: str | Path) -> int:
        """Write `jsonl` to a file; the number of entries. Raises OSError."""
        Path(path).write_text(self.jsonl(), encoding="utf-8")
        return len(self._lines)

    @staticmethod
    def read(path: str | Path) -> list[TraceEntry]:
        """What `write` wrote. Raises OSError, msgspec.DecodeError."""
        return [msgspec.json.decode(line, type=TraceEntry) for line in Path(path).read_bytes().splitlines()]


def _entry(at_ms: float, direction: Direction, frame: str) -> TraceEntry:
    size = len(frame.encode())
    try:
        decoded = _decode(frame)
        if isinstance(decoded, dict):
            kind, seq = decoded.get("type"), decoded.get("server_event_seq")
            name = kind if isinstance(kind, str) else ""
            kept = _without(decoded, name)
            return TraceEntry(at_ms, direction, name, size, kept, seq if type(seq) is int else None)
    except (msgspec.DecodeError, RecursionError):
        pass  # no JSON, or nested so deeply that nobody reads it
    return TraceEntry(at_ms, direction, "", size, {"undecodable": digest(frame)})


def _without(value: Any, kind: str) -> Any:
    """The value without media and secrets."""
    if isinstance(value, list):
        return [_without(one, kind) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, one in value.items():
        if key in _SECRET:
            kept[key] = "(secret)"
        elif key in _MEDIA or (key == "delta" and kind in _AUDIO_DELTAS):
            kept[key] = _elided(one, kind)
        else:
            kept[key] = _without(one, kind)
    return kept


def _elided(value: Any, kind: str) -> Any:
    if isinstance(value, str):
        return digest(value) if len(value) >= _LONG else value
    if isinstance(value, list):
        return [_elided(one, kind) for one in value]
    return _without(value, kind)


def digest(text: str) -> dict[str, Any]:
    """What stands for a text that is not kept: its length in characters and a part of its SHA-256."""
    return {"length": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()[:16]}
