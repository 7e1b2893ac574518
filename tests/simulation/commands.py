"""What a simulated client has sent in one session, and which answers that must have brought. Nothing is known here
but what was said on the wire."""

from __future__ import annotations

import base64
import functools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
from simulation.record import Record

_encode = msgspec.json.Encoder().encode

INPUT_RATE_HZ = 16_000
INLINE_MS = 200
"""Longer appends are converted elsewhere, and what comes behind them waits."""
MAY_WAIT = 64
"""How much may wait behind one, or for room in the output."""
CROWD = 16
"""The ordered input waits while more than half of what the output may hold (`world.LIMITS`: 60 events or 100 kB) is
under way. Sound that a cancel takes back goes in pairs with text, or fills the 100 kB: of either at least so many
events still come."""
CUTS = ("response.cancel", "input.cancel", "barge_in", "output_audio_buffer.clear")
COUNTED = {
    "session.heartbeat": "session.heartbeat",
    "playback.ack": "playback.ack",
    "input_audio_buffer.clear": "clear",
    "input.cancel": "clear",
    "barge_in": "clear",
    "input_audio_buffer.commit": "input_audio_buffer.commit",
    "turn.signal": "turn.signal",
    "conversation.item.retrieve": "conversation.item.retrieve",
    "session.update": "session.update",
}
"""Commands that are answered by exactly one event (or by an error that names them), and under which name."""


@dataclass(slots=True)
class Sent:
    """One command, for when it has to be sent again."""

    event_id: str
    kind: str
    text: str
    told_until: float
    """What came before is known as delivered where the session lives when this gets there."""
    audio_ms: int = 0
    item_id: str = ""


class Commands:
    """The commands of one session, in order."""

    def __init__(self, prefix: str, record: Record) -> None:
        self._prefix = prefix
        self._record = record
        self.sent: list[Sent] = []

    def add(self, kind: str, audio_ms: int, fields: dict[str, Any]) -> Sent:
        """One more; `fields` are the rest of its frame."""
        event_id = f"{self._prefix}.{len(self.sent)}"
        frame: dict[str, Any] = {"type": kind, "event_id": event_id, **fields}
        if audio_ms:
            frame["audio"] = self._record.sound(event_id, audio_ms)
        item_id = fields["item"]["id"] if kind == "conversation.item.create" else ""
        sent = Sent(event_id, kind, _encode(frame).decode(), self._record.told_until(), audio_ms, item_id)
        self.sent.append(sent)
        return sent

    def after(self, event_id: str) -> int | None:
        """The place behind this command; None: it is none of these."""
        return next((at + 1 for at, sent in enumerate(self.sent) if sent.event_id == event_id), None)

    def unanswered(self) -> dict[str, tuple[int, int]]:
        """Of which commands answers are missing: how many there are, and how many are due."""
        answers = self._record.answers
        dropped = Counter(COUNTED.get(sent.kind, "") for sent in self._droppable())
        due = self._due()
        return {name: (answers[name], n) for name, n in due.items() if answers[name] < n - dropped[name]}

    def check(self, input_audio_end_ms: int) -> None:
        """Everything is answered: nothing twice, nothing never."""
        record = self._record
        missing = self.unanswered()
        for name, due in self._due().items():
            if record.answers[name] > due or name in missing:
                record.fail(f"{record.answers[name]} answers to {due} times {name}")
        for sent in self.sent:
            code = record.errors.get(sent.event_id, "")
            if sent.item_id and not code and not record.items[sent.item_id]:
                record.fail(f"{sent.event_id}: item {sent.item_id} was never created")
            if code == "item_create_duplicate_item_id":
                record.fail(f"{sent.event_id} was applied twice")
        heard = sum(sent.audio_ms for sent in self.sent if sent.event_id not in record.errors)
        dropped = sum(sent.audio_ms for sent in self._droppable())
        if not heard - dropped <= input_audio_end_ms <= heard:
            record.fail(f"{input_audio_end_ms} ms of input were taken of {heard}, {dropped} may have been dropped")

    def _due(self) -> dict[str, int]:
        """How many answers of each kind there must be, less those that were refused by name."""
        due = {"session.update": 1}
        for sent in self.sent:
            name = COUNTED.get(sent.kind)
            if name is not None and sent.event_id not in self._record.errors:
                due[name] = due.get(name, 0) + 1
        return due

    def _droppable(self) -> list[Sent]:
        """Input that a cancel may have found waiting, behind a long append or for room, and dropped unread."""
        dropped: dict[str, Sent] = {}
        waiting: list[Sent] = []
        clears = 0
        for at, sent in enumerate(self.sent):
            clears += COUNTED.get(sent.kind) == "clear"
            if sent.kind in ("input.cancel", "barge_in"):
                if self._record.under_way(sent.told_until, clears) >= CROWD:
                    before = self.sent[max(0, at - MAY_WAIT) : at]
                    waiting = [one for one in before if one.kind.startswith("input_audio_buffer")]
                dropped.update((one.event_id, one) for one in waiting)
                waiting = []
            elif sent.audio_ms > INLINE_MS or (waiting and sent.kind.startswith("input_audio_buffer")):
                waiting = [*waiting, sent][-MAY_WAIT:]
        return list(dropped.values())


@functools.cache
def loud(ms: int) -> str:
    """Base64 of so much of something loud: pcm16 at 16 kHz."""
    return base64.b64encode(bytes([0x00, 0x20, 0x00, 0xE0]) * (ms * INPUT_RATE_HZ // 2000)).decode()
