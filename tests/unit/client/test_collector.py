"""What is measured of a conversation: by hand-made events at hand-made times."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from duologue.client import ConnectionResumed, EventCollector, Spread
from duologue.protocol.duplex import event_from_realtime

pytestmark = pytest.mark.unit

PIECE = base64.b64encode(bytes(24 * 80 * 2)).decode()
"""80 ms at 24 kHz."""


class Session:
    """A collector and its clock, in milliseconds."""

    def __init__(self, **bounds: int) -> None:
        self.now_ms = 0.0
        self.collector = EventCollector(clock=lambda: self.now_ms / 1000, **bounds)

    def event(self, kind: str, at_ms: float, **fields: Any) -> None:
        self.now_ms = at_ms
        self.collector.received(event_from_realtime({"type": kind, **fields}))

    def sound(self, at_ms: float, response: str = "r1") -> None:
        self.event(
            "response.output_audio.delta",
            at_ms,
            response_id=response,
            item_id="i",
            delta=PIECE,
            format="pcm16",
            sample_rate_hz=24_000,
        )

    def done(self, at_ms: float, response: str = "r1", status: str = "completed") -> None:
        body = {"id": response, "object": "realtime.response", "status": status, "output": []}
        self.event("response.done", at_ms, response_id=response, response=body)

    def sent(self, kind: str, at_ms: float) -> None:
        self.now_ms = at_ms
        self.collector.sent({"type": kind})


def test_first_sound_is_measured_from_the_commit() -> None:
    session = Session()
    session.sent("input_audio_buffer.append", 0)
    session.sent("input_audio_buffer.commit", 100)
    session.sent("response.create", 130)
    session.event("response.created", 150, response_id="r1", response={})
    session.sound(400)
    session.done(500)
    summary = session.collector.timing_summary()
    assert summary.first_audio_ms == Spread(1, 300.0, 300.0, 300.0, 300.0)
    assert summary.begun_to_audio_ms.max == 250.0
    assert (summary.responses, summary.completed, summary.audio_ms) == (1, 1, 80.0)


def test_the_callers_word_counts_more_than_the_servers() -> None:
    session = Session()
    session.now_ms = 50
    session.collector.speech_ended()
    session.event("input_audio_buffer.speech_stopped", 500, audio_end_ms=0, item_id="i")
    session.sent("input_audio_buffer.commit", 510)
    session.sound(1050)
    assert session.collector.timing_summary().first_audio_ms.max == 1000.0


def test_a_turn_counts_for_one_answer() -> None:
    session = Session()
    session.event("input_audio_buffer.speech_stopped", 100, audio_end_ms=0, item_id="i")
    session.sound(200, "r1")
    session.sound(900, "r2")
    assert session.collector.timing_summary().first_audio_ms.count == 1


def test_gaps_and_what_a_player_would_have_missed() -> None:
    session = Session()
    for at_ms in (0, 50, 100, 500, 580):  # 240 ms of sound by 100, dry from 240 to 500; then in time
        session.sound(at_ms)
    summary = session.collector.timing_summary()
    assert (summary.gap_ms.count, summary.gap_ms.max, summary.gap_ms.min) == (4, 400.0, 50.0)
    assert summary.starved_ms == Spread(1, 260.0, 260.0, 260.0, 260.0)


def test_decisions_and_endings_are_counted() -> None:
    session = Session()
    session.event("response.listen", 0, session_id="s", epoch=0, response={})
    session.event("response.speak", 1, response_id="r1", item_id="i")
    session.event(
        "overlap.decision", 2, session_id="s", epoch=0, policy="p", action="barge_in", reason="x", metadata={}
    )
    session.event("overlap.decision", 3, session_id="s", epoch=0, policy="p", action="listen", reason="x", metadata={})
    session.done(4, "r1", "cancelled")
    session.done(5, "r2", "failed")
    session.event("error", 6, error={"type": "server_error", "code": "c", "message": "m"})
    session.collector.received(ConnectionResumed(1))
    summary = session.collector.timing_summary()
    assert (summary.listens, summary.speaks, summary.barge_ins) == (1, 1, 1)
    assert (summary.responses, summary.cancelled, summary.failed, summary.completed) == (2, 1, 1, 0)
    assert (summary.errors, summary.resumes, summary.events) == (1, 1, 8)


def test_sound_of_an_unknown_rate_is_measured_by_what_the_server_says() -> None:
    session = Session()
    for generated_ms in (80, 200):
        playback = {"generated_ms": generated_ms}
        metadata = {"session_id": "s", "epoch": 0, "playback": playback}
        session.event("response.output_audio.delta", 0, response_id="r", item_id="i", delta=PIECE, metadata=metadata)
    assert session.collector.timing_summary().audio_ms == 200.0


def test_what_is_kept_is_bounded_and_the_totals_are_not() -> None:
    session = Session(max_events=10, max_responses=2)
    for n in range(5):
        session.sound(n, f"r{n}")
        session.done(n, f"r{n}")
    for _ in range(10):
        session.event("session.heartbeat_ack", 0, session_id="s")
    collector = session.collector
    assert (len(collector.seen), collector.dropped_events) == (10, 10)
    assert ([timing.response_id for timing in collector.responses], collector.dropped_responses) == (["r3", "r4"], 3)
    summary = collector.timing_summary()
    assert (summary.events, summary.responses, summary.audio_ms) == (20, 5, 400.0)
    assert set(collector.types) == {"session.heartbeat_ack"}


def test_percentiles_are_values_that_occurred() -> None:
    assert Spread.of([]) == Spread()
    assert Spread.of([3.0]) == Spread(1, 3.0, 3.0, 3.0, 3.0)
    assert Spread.of(list(range(1, 101))) == Spread(100, 1, 50, 95, 100)


def test_a_summary_is_told_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(EventCollector().timing_summary()))["first_audio_ms"]["count"] == 0
