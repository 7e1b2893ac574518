"""Recordings made by hand: a session in which all is well, to be broken in one place."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from chaos.canary import RATE_HZ, UNIT_SAMPLES, pitch
from chaos.recording import Line


def tone(session: int, unit: int) -> str:
    """Unit `unit` of the endless tone of a session, as a delta has it."""
    n = np.arange(unit * UNIT_SAMPLES, (unit + 1) * UNIT_SAMPLES)
    wave = np.rint(9800 * np.sin(2 * np.pi * pitch(session) / RATE_HZ * n))
    return base64.b64encode(wave.astype("<i2").tobytes()).decode()


class Recorded:
    """Lines, one every 80 ms; events get their numbers by themselves."""

    def __init__(self, session: int = 0) -> None:
        self.session = session
        self.lines: list[Line] = []
        self.seq = 0

    def _add(self, mark: str, frame: dict[str, Any]) -> None:
        self.lines.append(Line(10.0 + 0.08 * len(self.lines), mark, frame))

    def sent(self, kind: str, event_id: str, **fields: Any) -> None:
        self._add(">", {"type": kind, "event_id": event_id, **fields})

    def event(self, kind: str, **fields: Any) -> None:
        """A numbered event."""
        self.seq += 1
        self._add("<", {"type": kind, "server_event_seq": self.seq, **fields})

    def unnumbered(self, kind: str, **fields: Any) -> None:
        self._add("<", {"type": kind, **fields})

    def ended(self, told: str = "closed", *, expected: bool = True) -> None:
        self._add("!", {"end": told, "expected": expected})

    # -- what happens in a session ----------------------------------------------------------------------

    def append(self, event_id: str) -> None:
        self.sent("input_audio_buffer.append", event_id, audio="", duration_ms=80.0)

    def create(self, event_id: str, item_id: str) -> None:
        self.sent("conversation.item.create", event_id, item={"id": item_id})

    def added(self, item_id: str) -> None:
        self.event("conversation.item.added", item={"id": item_id})

    def resumed(self, through: str, ms: float) -> None:
        self.unnumbered("session.resumed", last_client_event_id=through, input_audio_end_ms=ms)

    def audio(self, response_id: str, delta: str) -> None:
        self.event("response.output_audio.delta", response_id=response_id, delta=delta)

    def done(self, response_id: str, status: str = "completed", reason: str = "stop") -> None:
        response = {"id": response_id, "status": status, "status_details": {"reason": reason}}
        self.event("response.done", response_id=response_id, response=response)

    def speak(self, response_id: str, units: range) -> None:
        self.event("response.created", response={"id": response_id}, response_id=response_id)
        for unit in units:
            self.audio(response_id, tone(self.session, unit))
        self.done(response_id)

    def close(self) -> None:
        self.event("session.closed", reason="client_close")
        self.ended()


def good(session: int = 0) -> Recorded:
    """Everything that the rules look at, once."""
    it = Recorded(session)
    it.unnumbered("session.created", server_event_seq=0)
    it.append("a1")
    it.create("i1", "item_1")
    it.added("item_1")
    it.speak("r1", range(0, 3))
    it.append("a2")
    it.create("i2", "item_2")
    it.resumed("a2", 160.0)
    it.create("i2", "item_2")  # sent again: the server did not hold it
    it.added("item_2")
    it.sent("response.cancel", "c1")
    it.unnumbered("error", error={"code": "response_not_active", "event_id": "c1"})
    it.sent("conversation.item.delete", "d1", item_id="item_1")
    it.event("conversation.item.deleted", item_id="item_1")
    it.speak("r2", range(3, 5))
    return it
