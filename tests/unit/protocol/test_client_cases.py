"""Faults between clients and servers that users reported elsewhere, as far as one frame shows them."""

from __future__ import annotations

import base64
import json
from typing import Any

import dialect_judge
import pytest
from unit.protocol.event_samples import SAMPLES, SID
from unit.session.core.session_world import World, pick

from duologue.protocol import duplex as p
from duologue.protocol.duplex import Dialect, RealtimeProtocolError, SessionUpdate, command_from_realtime

pytestmark = pytest.mark.unit


def refused(frame: str | bytes) -> RealtimeProtocolError:
    with pytest.raises(RealtimeProtocolError) as error:
        command_from_realtime(frame)
    return error.value


# -- AUD-08 -----------------------------------------------------------------------------------------------

PCM = bytes(range(250, 256)) * 20
GOOD = base64.b64encode(PCM).decode()
WAV = b"RIFF" + (36 + len(PCM)).to_bytes(4, "little") + b"WAVEfmt " + bytes(20) + PCM
NOISE = {
    "line breaks": base64.encodebytes(PCM).decode(),
    "URL-safe alphabet": base64.urlsafe_b64encode(PCM).decode(),
    "data URL": "data:audio/pcm;base64," + GOOD,
    "no padding": base64.b64encode(PCM + b"1").decode().rstrip("="),
    "empty": "",
    "garbage": "%%%%",
    "a WAV file": base64.b64encode(WAV).decode(),
}


@pytest.mark.parametrize("audio", NOISE.values(), ids=NOISE)
def test_aud_08_noise_in_base64_is_refused_by_name(audio: str) -> None:
    error = refused(json.dumps({"type": "input_audio_buffer.append", "event_id": "e", "audio": audio}))
    assert (error.error_type, error.param, error.event_id) == ("invalid_request_error", "audio", "e")
    assert error.code == ("bad_event" if audio == "" else "bad_audio")


def test_aud_08_noise_in_an_item_is_refused_by_name() -> None:
    for audio in [noise for name, noise in NOISE.items() if name != "empty"]:
        content = [{"type": "input_audio", "audio": audio}]
        item = {"type": "message", "role": "user", "content": content}
        error = refused(json.dumps({"type": "conversation.item.create", "item": item}))
        assert (error.code, error.param) == ("bad_audio", "item.content[0].audio")


# -- PRO-14 -----------------------------------------------------------------------------------------------

UNDECODABLE: dict[str, str | bytes] = {
    "no JSON": "{",
    "no type": '{"event_id":"e"}',
    "type is no string": '{"type":7,"event_id":"e"}',
    "a list": "[1]",
    "a string": '"x"',
    "null": "null",
    "binary": b'{"type":"session.heartbeat"}',
    "depth 2000": '{"type":"session.update","event_id":"e","session":' + "[" * 2000 + "]" * 2000 + "}",
    "NaN": '{"type":"playback.ack","event_id":"e","played_ms":NaN}',
}


@pytest.mark.parametrize("frame", UNDECODABLE.values(), ids=UNDECODABLE)
def test_pro_14_what_is_no_command_is_one_bounded_error(frame: str | bytes) -> None:
    error = refused(frame)
    assert error.undecodable, "it counts towards the cap"
    assert error.code in ("invalid_json", "bad_event")
    assert len(error.message) < 200 and "Traceback" not in error.message
    readable = isinstance(frame, str) and '"event_id":"e"' in frame and "[[" not in frame
    assert error.event_id == ("e" if readable else None)


def test_pro_14_a_private_event_of_somebody_else_is_refused_by_its_id() -> None:
    error = refused(json.dumps({"type": "bridge." + "x" * 10_000, "event_id": "e", "data": {"a": 1}}))
    assert (error.code, error.param, error.event_id, error.undecodable) == ("unknown_event", "type", "e", False)
    assert len(error.message) < 200


# -- CLI-01 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [Dialect.openai, Dialect.openai_beta])
def test_cli_01_every_event_is_one_that_strict_clients_read(dialect: Dialect) -> None:
    """A sample of each; whatever else any test causes is judged by the same judge."""
    view = p.SessionView(SID, p.SessionConfig.provisional(dialect, model="loopback"))
    complaints = []
    for event, _ in SAMPLES:
        if event.type.startswith("session."):
            continue  # its session object is the sample of another dialect: see `test_session_object`
        for body in p.project(event, dialect, view):
            complaints.append(dialect_judge.complaint(json.loads(body), dialect))
    assert [told for told in complaints if told] == [] and len(complaints) > 20


# -- CLI-02 -----------------------------------------------------------------------------------------------

BETA: dict[str, Any] = {
    "modalities": ["text"],
    "instructions": "Be brief.",
    "voice": "alto",
    "input_audio_format": "g711_ulaw",
    "output_audio_format": "pcm16",
    "input_audio_transcription": {"model": "whisper-1"},
    "turn_detection": {"type": "server_vad", "threshold": 0.7, "prefix_padding_ms": 100},
    "tools": [{"type": "function", "name": "f", "description": "", "parameters": {}}],
    "tool_choice": "auto",
    "temperature": 0.8,
    "max_response_output_tokens": 100,
}
GA: dict[str, Any] = {
    "type": "realtime",
    "output_modalities": ["text"],
    "instructions": "Be brief.",
    "audio": {
        "input": {
            "format": {"type": "audio/pcmu"},
            "transcription": {"model": "whisper-1"},
            "turn_detection": {"type": "server_vad", "threshold": 0.7, "prefix_padding_ms": 100},
        },
        "output": {"voice": "alto", "format": {"type": "audio/pcm", "rate": 24_000}},
    },
    "tools": [{"type": "function", "name": "f", "description": "", "parameters": {}}],
    "tool_choice": "auto",
    "temperature": 0.8,
    "max_output_tokens": 100,
}


@pytest.mark.parametrize("dialect", list(Dialect))
def test_cli_02_flat_and_nested_fields_are_the_same_configuration(dialect: Dialect) -> None:
    config = p.SessionConfig.provisional(dialect, model="m")
    assert config.updated(BETA) == config.updated(GA) != config


@pytest.mark.parametrize("dialect", [Dialect.openai, Dialect.openai_beta])
@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"voice": 7}, "session.voice"),
        ({"modalities": "text"}, "session.modalities"),
        ({"input_audio_format": "mp3"}, "session.input_audio_format"),
        ({"turn_detection": {"type": "server_vad", "threshold": 2}}, "session.turn_detection.threshold"),
    ],
)
def test_cli_02_what_is_wrong_is_one_error_that_names_the_field(
    dialect: Dialect, patch: dict[str, Any], param: str
) -> None:
    world = World(dialect=dialect)
    (error,) = world.send(SessionUpdate(session=patch, event_id="e"))
    assert (error["type"], error["error"]["param"], error["error"]["event_id"]) == ("error", param, "e")
    assert pick(world.send(SessionUpdate(session={"voice": "alto"})), "session.updated")
