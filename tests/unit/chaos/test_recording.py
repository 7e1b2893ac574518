"""What is recorded is what is read, but for the sound that a client sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chaos.checker import check
from chaos.recording import Recorder, read, recording_of
from unit.chaos.recorded import good

pytestmark = pytest.mark.unit


def test_frames_come_back_in_order_and_the_sound_that_was_sent_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "one.log")
    recorder(">", '{"type":"input_audio_buffer.append","audio":"AAAA","duration_ms":80.0,"event_id":"a1"}')
    recorder(">", '{"type":"session.heartbeat","event_id":"h1"}')
    recorder("<", '{"type":"response.output_audio.delta","delta":"BBBB","server_event_seq":1}')
    recorder.note(end="closed", expected=True)
    recorder.close()
    lines = list(read(tmp_path / "one.log"))
    assert [line.mark for line in lines] == [">", ">", "<", "!"]
    assert lines[0].frame == {"type": "input_audio_buffer.append", "audio": "", "duration_ms": 80.0, "event_id": "a1"}
    assert lines[2].frame["delta"] == "BBBB" and lines[2].seq == 1
    assert [line.at for line in lines] == sorted(line.at for line in lines)


def test_a_run_is_judged_from_its_files(tmp_path: Path) -> None:
    for session in range(2):
        it = good(session)
        it.seq += session  # of the second one an event is lost
        it.close()
        rows = (f"{line.at:.6f} {line.mark} {json.dumps(line.frame)}\n" for line in it.lines)
        recording_of(tmp_path, session, 3).write_text("".join(rows))
    verdict = check(tmp_path, 2)
    assert [(v.rule, v.session) for v in verdict.violations] == [("lost", 1)]
    assert verdict.first.startswith("session-001-03:") and "^^^ lost" in verdict.first
    assert verdict.ends == {"completed stop": 4} and verdict.counts["resumes"] == 2
    assert [len(heard) for heard in verdict.heard] == [5, 5]
