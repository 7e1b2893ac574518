"""Frames that yield no command, and frames that only look like it."""

from __future__ import annotations

import json

import pytest

from duologue.protocol import duplex as p
from duologue.protocol.realtime.json_guard import too_deep

pytestmark = pytest.mark.unit


def nested(levels: int, inner: str = "") -> str:
    """An event nested so many levels deep, the event itself included."""
    return '{"type": "x", "event_id": "e1", "a": ' + "[" * (levels - 1) + inner + "]" * (levels - 1) + "}"


@pytest.mark.parametrize(
    ("frame", "code", "event_id", "undecodable"),
    [
        ("{nonsense", "invalid_json", None, True),
        ("", "invalid_json", None, True),
        ("[]", "bad_event", None, True),
        ("null", "bad_event", None, True),
        ("7", "bad_event", None, True),
        ('"session.update"', "bad_event", None, True),
        ('{"event_id": "e1"}', "bad_event", "e1", True),
        ('{"type": 5, "event_id": "e1"}', "bad_event", "e1", True),
        ('{"type": null, "event_id": "e1"}', "bad_event", "e1", True),
        ('{"type": "zzz", "event_id": "e1"}', "unknown_event", "e1", False),
        ('{"type": "zzz"}', "unknown_event", None, False),
        ('{"type": "push_chunk", "event_id": "e1"}', "unknown_event", "e1", False),
        ('{"type": "input.audio.append", "event_id": "ünï cöde"}', "unknown_event", "ünï cöde", False),
        ('{"type": "session.heartbeat", "event_id": 5}', "bad_event", None, False),
        (nested(64), "unknown_event", "e1", False),
        (nested(65), "bad_event", None, True),
        (nested(5000), "bad_event", None, True),
        ("[" * 100_000, "bad_event", None, True),
        ('{"type": "playback.ack", "event_id": "e1", "played_ms": NaN}', "bad_event", "e1", True),
        ('{"type": "playback.ack", "event_id": "e1", "played_ms": Infinity}', "bad_event", "e1", True),
        ('{"type": "playback.ack", "event_id": "e1", "played_ms": 1e999}', "bad_event", "e1", True),
        ('{"type": "session.update", "event_id": "e1", "session": {"x": [-1e400]}}', "bad_event", "e1", True),
        ('{"type": "input_audio_buffer.append", "audio": "AAAA", "x": -Infinity}', "bad_event", None, True),
        ('{"type": "session.close", "reason": "\\ud800"}', "invalid_json", None, True),
        ('{"type": "session.heartbeat"} {}', "invalid_json", None, True),
        (b"\x00\x01binary", "bad_event", None, True),
        (b'{"type": "session.heartbeat"}', "bad_event", None, True),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_malformed_frame(frame: str | bytes, code: str, event_id: str | None, undecodable: bool) -> None:
    with pytest.raises(p.RealtimeProtocolError) as refused:
        p.command_from_realtime(frame)
    error = refused.value
    assert (error.code, error.event_id, p.is_undecodable(error)) == (code, event_id, undecodable)
    assert error.error_type == "invalid_request_error"


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ('{"type": "playback.ack", "played_ms": NaN}', "played_ms"),
        ('{"type": "session.update", "session": {"x": [1, Infinity]}}', "session.x.1"),
    ],
)
def test_a_number_that_is_not_finite_is_named(frame: str, param: str) -> None:
    with pytest.raises(p.RealtimeProtocolError) as refused:
        p.command_from_realtime(frame)
    assert refused.value.param == param


def test_a_deep_update_within_the_limit_is_read() -> None:
    frame = '{"type": "session.update", "session": {"x": ' + "[" * 62 + "]" * 62 + "}}"
    assert isinstance(p.command_from_realtime(frame), p.SessionUpdate)


def test_depth_counts_brackets_outside_strings_only() -> None:
    many = json.dumps({"a": ["[" * 500, '"]' * 3, "\\", [{}] * 300]})
    assert not too_deep(many)
    assert too_deep(json.dumps({"a": "]" * 500}).replace('"a": "', '"a": ' + "[" * 64 + '"'))
    assert too_deep("[" * 65)
    assert not too_deep("[" * 64 + "]" * 64 + "[]" * 500)


def test_the_type_may_come_last() -> None:
    frame = '{"played_ms": 80, "event_id": "e", "type": "playback.ack"}'
    assert p.command_from_realtime(frame) == p.AckPlayback(event_id="e", played_ms=80)


def test_a_long_event_id_is_kept() -> None:
    command = p.command_from_realtime(json.dumps({"type": "barge_in", "event_id": "x" * 512}))
    assert command.event_id == "x" * 512
