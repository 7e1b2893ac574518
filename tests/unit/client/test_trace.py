"""The wire trace: bounded, without sound and without secrets, and readable afterwards."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from duologue.client import DuplexTrace

pytestmark = pytest.mark.unit

SOUND = base64.b64encode(bytes(range(250))).decode()


def trace_of(*frames: object, **bounds: int) -> DuplexTrace:
    times = iter(n / 10 for n in range(10_000))
    trace = DuplexTrace(clock=lambda: next(times), **bounds)
    for frame in frames:
        trace("<", frame if isinstance(frame, str) else json.dumps(frame))
    return trace


def test_frames_are_kept_with_their_time_direction_type_and_number() -> None:
    times = iter((5.0, 5.25))
    trace = DuplexTrace(clock=lambda: next(times))
    trace(">", '{"type":"session.heartbeat","event_id":"e"}')
    trace("<", '{"type":"session.heartbeat_ack","server_event_seq":7}')
    assert [(e.at_ms, e.direction, e.type, e.seq) for e in trace] == [
        (0.0, ">", "session.heartbeat", None),
        (250.0, "<", "session.heartbeat_ack", 7),
    ]
    assert next(iter(trace)).size == 43


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "input_audio_buffer.append", "audio": SOUND},
        {"type": "input_audio_buffer.append", "video_frames": [SOUND]},
        {"type": "response.output_audio.delta", "delta": SOUND},
        {"type": "conversation.item.create", "item": {"content": [{"type": "input_audio", "audio": SOUND}]}},
        {"type": "conversation.item.create", "item": {"content": [{"type": "input_image", "image_url": SOUND}]}},
        {"type": "session.update", "session": {"ref_audio": SOUND}},
    ],
)
def test_of_media_there_is_a_size_and_a_digest(frame: dict[str, object]) -> None:
    trace = trace_of(frame)
    assert SOUND[:32] not in trace.jsonl()
    assert f'"length":{len(SOUND)}' in trace.jsonl() and '"sha256"' in trace.jsonl()


def test_equal_media_has_equal_digests_and_other_media_another() -> None:
    other = SOUND[:-8] + "AAAAAAAA"
    a, b, c = trace_of(*({"type": "input_audio_buffer.append", "audio": one} for one in (SOUND, SOUND, other)))
    assert a.frame == b.frame != c.frame


def test_what_is_no_media_stays() -> None:
    frames = (
        {"type": "response.output_text.delta", "delta": "word " * 40},
        {"type": "session.updated", "session": {"audio": {"input": {"format": {"type": "audio/pcm"}}}}},
        {"type": "conversation.item.added", "item": {"content": [{"type": "output_audio", "audio": None}]}},
    )
    assert [entry.frame for entry in trace_of(*frames)] == list(frames)


def test_tokens_are_left_out_wherever_they_are() -> None:
    trace = trace_of(
        {"type": "session.created", "resume_token": "abc-secret"},
        {"type": "x", "session": {"client_secret": {"value": "abc-secret"}}},
    )
    assert "abc-secret" not in trace.jsonl() and trace.jsonl().count("(secret)") == 2


@pytest.mark.parametrize("frame", ["no json", "[1]", '"text"', '{"type":7}'])
def test_a_frame_that_is_no_event_is_kept_as_one(frame: str) -> None:
    [entry] = trace_of(frame)
    assert (entry.type, entry.size) == ("", len(frame))


def test_the_trace_is_bounded_in_entries_and_in_bytes() -> None:
    frames = [{"type": "t", "n": n} for n in range(100)]
    few = trace_of(*frames, max_entries=10)
    assert (len(few), few.dropped) == (10, 90)
    assert [entry.frame["n"] for entry in few] == list(range(90, 100))
    small = trace_of(*frames, max_bytes=1000)
    assert len(small.jsonl()) - len(small) <= 1000 and small.dropped == 100 - len(small) > 0


def test_an_empty_trace_is_written_to(tmp_path: Path) -> None:
    trace = DuplexTrace()
    assert trace.write(tmp_path / "t.jsonl") == 0
    trace("<", '{"type":"session.closed"}')
    assert len(trace) == 1


def test_what_is_written_is_read(tmp_path: Path) -> None:
    trace = trace_of({"type": "a"}, {"type": "b", "server_event_seq": 1})
    assert trace.write(tmp_path / "t.jsonl") == 2
    assert DuplexTrace.read(tmp_path / "t.jsonl") == list(trace)
    assert [json.loads(line)["type"] for line in (tmp_path / "t.jsonl").read_text().splitlines()] == ["a", "b"]
