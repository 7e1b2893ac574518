"""Every number once and in order, nothing after a terminal event, and a session that ended as its client asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from chaos.recording import Line
from chaos.violations import Violation

OVER: Final = ("session.closed", "session.expired")


def numbers(session: int, lines: Sequence[Line]) -> Iterator[Violation]:
    """A gap only where the server told of one."""
    due = 1
    for line in lines:
        if line.mark == "<" and line.type == "session.resync_required":
            due = max(due, int(line.frame["head_seq"]) + 1)
        seq = line.seq
        if seq is None:
            continue
        if seq < due:
            yield Violation("doubled", session, line.at, f"{line.type} has number {seq} after {due - 1}")
            continue
        if seq > due:
            told = f"{line.type} has number {seq} where {due} is due"
            yield Violation("lost", session, line.at, told, counts=seq - due)
        due = seq + 1


def terminals(session: int, lines: Sequence[Line]) -> Iterator[Violation]:
    """Each response ends once, and nothing is told of it or of the session afterwards."""
    open_: dict[str, float] = {}
    done: set[str] = set()
    over = gap = False
    for line in lines:
        if line.mark != "<":
            continue
        if over:
            yield Violation("after the end", session, line.at, f"{line.type} after the end of the session")
        over = over or line.type in OVER
        gap = gap or line.type == "session.resync_required"
        response_id = _response_of(line)
        if not response_id:
            continue
        if response_id in done:
            yield Violation("after the end", session, line.at, f"{line.type} after response.done of {response_id}")
        elif line.type == "response.done":
            done.add(response_id)
            open_.pop(response_id, None)
        else:
            open_.setdefault(response_id, line.at)
    if over and not gap:
        for response_id, at in open_.items():
            yield Violation("never ended", session, at, f"{response_id} has no response.done")


def _response_of(line: Line) -> str:
    response = line.frame.get("response")
    return str(line.frame.get("response_id") or (response.get("id") if isinstance(response, dict) else "") or "")


def lives(session: int, lines: Sequence[Line]) -> Iterator[Violation]:
    """It ends by its client's close, and says so, unless the line is cut just then."""
    if not lines:
        yield Violation("session lost", session, 0.0, "it was never opened")
        return
    last = lines[-1]
    if "end" not in last.frame:
        yield Violation("session lost", session, last.at, "its client has not told how it ended")
    elif not last.frame["expected"] and any(line.type == "session.close" for line in lines):
        return  # the line was cut behind the client's close: there was nothing to come back to
    elif not last.frame["expected"]:
        yield Violation("session lost", session, last.at, str(last.frame["end"]))
    else:
        closed = [line for line in lines if line.mark == "<" and line.type == "session.closed"]
        if not closed or closed[-1].frame.get("reason") != "client_close":
            yield Violation("session lost", session, last.at, "session.closed never came")
