"""What a rule says when it is broken, and the history around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from chaos.recording import Line

BEFORE, AFTER = 40, 12
TOLD: Final = 150
"""Characters of a line of a history."""


class Violation(msgspec.Struct, frozen=True):
    """`counts`: for how many events, commands or sessions it stands."""

    rule: str
    session: int
    at: float
    told: str
    counts: int = 1


Rule = Callable[[int, Sequence[Line]], Iterator[Violation]]
"""Of a session and all its lines."""


def history(violation: Violation, lines: Sequence[Line], faults: Sequence[tuple[float, str]], began: float) -> str:
    """The lines around a violation, with the faults between them. Times from `began`."""
    at = next((n for n, line in enumerate(lines) if line.at >= violation.at), len(lines))
    rows = [(line.at, f"{line.mark} {_shown(line)}") for line in lines[max(0, at - BEFORE) : at + AFTER]]
    if rows:
        rows += [(when, f"* {told}") for when, told in faults if rows[0][0] - 15.0 <= when <= rows[-1][0]]
    mark = f"{violation.at - began:9.3f}   ^^^ {violation.rule}: {violation.told}"
    shown = [f"{when - began:9.3f} {text}" for when, text in sorted(rows, key=lambda row: row[0])]
    place = sum(when <= violation.at for when, _ in rows)
    return "\n".join([*shown[:place], mark, *shown[place:]])


def _shown(line: Line) -> str:
    frame = line.frame
    kept: dict[str, Any] = {}
    for key in ("server_event_seq", "event_id", "response_id", "item_id", "last_client_event_id", "input_audio_end_ms"):
        if key in frame:
            kept[key] = str(frame[key])[-28:]
    response, item = frame.get("response"), frame.get("item")
    if isinstance(response, dict) and "status" in response:
        kept["status"] = f"{response['status']} {(response.get('status_details') or {}).get('reason', '')}".strip()
    if isinstance(item, dict):
        kept["item"] = str(item.get("id"))[-28:]
    if "error" in frame:
        kept["error"] = frame["error"]
    if not line.type:
        kept = frame
    text = " ".join(f"{key}={value}" for key, value in kept.items())
    return f"{line.type} {text}"[:TOLD]
