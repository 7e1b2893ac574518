"""Recording of sessions for replay: every fact with the exact `now` it was handled at, one JSON line each.

Off unless a directory is configured. A recording holds what the client said, audio included: it is made on
request, of one's own sessions, and read by the replay tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import msgspec

from duologue.session.core import SessionLimits
from duologue.session.core.commands import SessionCommand

_encoder = msgspec.json.Encoder()


class RecordedFact(msgspec.Struct, frozen=True):
    """One line after the first."""

    now: float
    fact: SessionCommand


class SessionRecorder:
    """One file. The first line tells how the machine was opened."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def record(self, fact: SessionCommand, now: float) -> None:
        self._file.write(_encoder.encode(RecordedFact(now, fact)) + b"\n")

    def close(self) -> None:
        self._file.close()


class Recorder:
    """Makes a `SessionRecorder` for each session, in `directory`. `limits`: those that its machines are opened with."""

    def __init__(self, directory: Path, limits: SessionLimits) -> None:
        self._directory = directory
        self._limits = limits
        directory.mkdir(parents=True, exist_ok=True)

    def open(self, session_id: str, opening: dict[str, Any]) -> SessionRecorder:
        file = (self._directory / f"{session_id}.jsonl").open("wb")
        file.write(_encoder.encode({**opening, "limits": self._limits}) + b"\n")
        return SessionRecorder(file)
