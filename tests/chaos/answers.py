"""Every command is answered once: what the server said it holds, and what the client sent again because it did not.

Items are answered by name. A cancel is answered by the cancelled response, or by an error that names it. Sound is
answered by the account of `session.resumed`: so many milliseconds up to this command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from chaos.recording import Line
from chaos.violations import Violation


class _Sent:
    """The commands in the order in which they were sent first; `at` of each."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.order: dict[str, Line] = {}
        for line in lines:
            if line.mark == ">" and "event_id" in line.frame:
                self.order.setdefault(line.frame["event_id"], line)
        self.place = {event_id: n for n, event_id in enumerate(self.order)}

    def of(self, kind: str) -> list[Line]:
        return [line for line in self.order.values() if line.type == kind]

    def heard_ms(self, through: str, refused: Counter[str]) -> float:
        """Milliseconds of sound up to this command, it included."""
        last = self.place[through]
        return sum(
            float(line.frame["duration_ms"])
            for event_id, line in self.order.items()
            if line.type == "input_audio_buffer.append" and self.place[event_id] <= last and not refused[event_id]
        )


def answered(session: int, lines: Sequence[Line]) -> Iterator[Violation]:
    """Nothing twice, nothing never."""
    sent, refused = _Sent(lines), _refused(lines)
    received = [line for line in lines if line.mark == "<"]
    gap = any(line.type == "session.resync_required" for line in received)
    covered = _covered(sent, received)
    added = Counter(line.frame["item"]["id"] for line in received if line.type == "conversation.item.added")
    deleted = Counter(line.frame["item_id"] for line in received if line.type == "conversation.item.deleted")
    named = [
        *((line, line.frame["item"]["id"], added) for line in sent.of("conversation.item.create")),
        *((line, line.frame["item_id"], deleted) for line in sent.of("conversation.item.delete")),
    ]
    for line, item_id, answers in named:
        event_id = line.frame["event_id"]
        count = answers[item_id] + refused[event_id]
        if count > 1:
            yield Violation("applied twice", session, line.at, f"{line.type} of {item_id}: {count} answers")
        elif refused[event_id] or (count == 0 and not gap):
            rule = "covered command lost" if sent.place[event_id] <= covered else "command lost"
            what = "refused" if refused[event_id] else "no answer"
            yield Violation(rule, session, line.at, f"{line.type} of {item_id} ({event_id}): {what}")


def cancels(session: int, lines: Sequence[Line]) -> Iterator[Violation]:
    """As many ends by cancel, and errors that name one, as there were cancels."""
    sent, refused = _Sent(lines), _refused(lines)
    if any(line.type == "session.resync_required" for line in lines):
        return
    asked = sent.of("response.cancel")
    ended = sum(
        line.type == "response.done"
        and line.frame["response"]["status"] == "cancelled"
        and line.frame["response"]["status_details"].get("reason") == "client_cancelled"
        for line in lines
        if line.mark == "<"
    )
    named = sum(refused[line.frame["event_id"]] for line in asked)
    if ended + named != len(asked):
        at = asked[-1].at if asked else lines[-1].at
        rule = "command lost" if ended + named < len(asked) else "applied twice"
        yield Violation(rule, session, at, f"{ended} responses cancelled and {named} errors for {len(asked)} cancels")


def sound_is_accounted(session: int, lines: Sequence[Line]) -> Iterator[Violation]:
    """What `session.resumed` says was heard is what had been sent up to the command that it names."""
    sent, refused = _Sent(lines), _refused(lines)
    for line in lines:
        if line.mark != "<" or line.type != "session.resumed":
            continue
        through, told = line.frame.get("last_client_event_id"), line.frame.get("input_audio_end_ms")
        if not through or told is None or through not in sent.place:
            continue
        due = sent.heard_ms(through, refused)
        if abs(told - due) >= 1.0:
            rule = "covered command lost" if told < due else "applied twice"
            yield Violation(rule, session, line.at, f"{told} ms of sound up to {through}, where {due:g} ms were sent")


def _refused(lines: Sequence[Line]) -> Counter[str]:
    """How often an error named each command."""
    return Counter(
        str(line.frame["error"].get("event_id") or "") for line in lines if line.mark == "<" and line.type == "error"
    )


def _covered(sent: _Sent, received: Sequence[Line]) -> int:
    """The place of the last command that the server said it holds; -1: none."""
    told = (line.frame.get("last_client_event_id") for line in received if line.type == "session.resumed")
    return max((sent.place[event_id] for event_id in told if event_id in sent.place), default=-1)
