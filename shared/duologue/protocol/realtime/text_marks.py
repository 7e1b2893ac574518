"""How much of a text has been heard when so much of its audio has sounded."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from duologue.protocol.realtime.items import TextMark


def truncate_text(
    text: str, marks: Sequence[TextMark], ms: float, total_ms: float, *, requires_complete: bool = False
) -> str:
    """The part of `text` that had been said at `ms` of `total_ms` milliseconds, right-stripped.

    Between marks, and from the last one to (total, all), the text grows linearly; without marks it grows
    in proportion. `requires_complete`: text and audio are not aligned, so it is all or nothing.
    """
    if ms <= 0:
        return ""
    last_ms = max((mark.audio_end_ms for mark in marks), default=0)
    final_ms = max(total_ms, last_ms)
    if ms >= final_ms:
        return text
    if requires_complete:
        return ""
    return text[: floor(_chars_at(_points(len(text), marks, final_ms), ms))].rstrip()


def _points(length: int, marks: Sequence[TextMark], final_ms: float) -> list[tuple[float, float]]:
    """(ms, chars) from (0, 0) to the end, both coordinates made monotonic."""
    points = [(0.0, 0.0)]
    for mark in sorted(marks, key=lambda mark: mark.audio_end_ms):
        at, chars = points[-1]
        points.append((max(at, mark.audio_end_ms), max(chars, min(mark.text_chars, length))))
    points.append((final_ms, float(length)))
    return points


def _chars_at(points: list[tuple[float, float]], ms: float) -> float:
    for (start, before), (end, after) in zip(points, points[1:], strict=False):
        if ms < end:
            return before + (after - before) * (ms - start) / (end - start)
        if ms == end:
            reached = max(chars for at, chars in points if at == end)
            return reached
    return points[-1][1]
