"""What one client recorded: a line for each frame that it sent or received, and for what became of its line.

    12.345678 > {"type":"input_audio_buffer.append",...}      sent; without its sound
    12.401234 < {"type":"response.listen",...}                received, as it stood on the wire
    98.000001 ! {"dropped":true}                              the client itself cuts its line
    99.000001 ! {"end":"client_close","expected":true}        how its session ended

Rule 1. Times are CLOCK_MONOTONIC, one clock for all processes of a machine.
Rule 2. The checker reads these files and nothing else of a client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec

_SOUND: Final = '"audio":"'


class Line(msgspec.Struct, frozen=True):
    """One line. `seq`: the number of a received event; None: it has none (`session.created` tells the head's)."""

    at: float
    mark: str
    frame: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.frame.get("type", ""))

    @property
    def seq(self) -> int | None:
        if self.mark != "<" or self.type == "session.created":
            return None
        seq = self.frame.get("server_event_seq")
        return seq if isinstance(seq, int) else None


class Recorder:
    """Pass it to a client as `trace`. Buffered: `close` writes the rest."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8", buffering=1 << 16)

    def __call__(self, direction: str, frame: str) -> None:
        if direction == ">":
            frame = _without_sound(frame)
        self._file.write(f"{time.monotonic():.6f} {direction} {frame}\n")

    def note(self, **fields: Any) -> None:
        """What a client says of itself."""
        self._file.write(f"{time.monotonic():.6f} ! {msgspec.json.encode(fields).decode()}\n")

    def close(self) -> None:
        self._file.close()


def recording_of(folder: Path, session: int, life: int) -> Path:
    """Of a client's first session, its second, ..."""
    return folder / f"session-{session:03}-{life:02}.log"


def recordings(folder: Path) -> list[tuple[int, Path]]:
    """All of a run, each with the number of its client."""
    return [(int(path.stem.split("-")[1]), path) for path in sorted(folder.glob("session-*.log"))]


def _without_sound(frame: str) -> str:
    begin = frame.find(_SOUND)
    if begin < 0:
        return frame
    begin += len(_SOUND)
    return frame[:begin] + frame[frame.index('"', begin) :]


def read(path: Path) -> Iterator[Line]:
    """The lines in order. Raises ValueError for what is none."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    with path.open(encoding="utf-8") as file:
        for line in file:
            at, mark, frame = line.split(" ", 2)
            yield Line(float(at), mark, decode(frame))
