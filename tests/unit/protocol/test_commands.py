"""Every client command: what is understood, what each bad field is called, and the way over the bus."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

import msgspec
import pytest

from duologue.protocol import duplex as p
from duologue.protocol.duplex.decode import ALIASES, WIRE_TYPES

pytestmark = pytest.mark.unit

JPEG, PNG = b"\xff\xd8" + bytes(60), b"\x89PNG" + bytes(60)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def read(type: str, **fields: Any) -> p.DuplexCommand:
    return p.command_from_realtime(json.dumps({"type": type, "event_id": "evt_1", **fields}))


AUDIO = bytes(range(64))
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
HI = p.Item(id="", role="user", content=(p.ContentPart(type="input_text", text="hi"),))

# (wire type, fields) -> the command, without event_id
GOOD: list[tuple[str, dict[str, Any], Any]] = [
    ("session.update", {"session": {"voice": "alto"}}, p.SessionUpdate(session={"voice": "alto"})),
    ("session.update", {"session": None}, p.SessionUpdate(session={})),
    ("session.update", {"voice": "alto"}, p.SessionUpdate(session={"voice": "alto"})),
    (
        "session.resume",
        {"session_id": "s", "resume_token": "t", "last_received_server_event_seq": 7},
        p.SessionResume(session_id="s", resume_token="t", last_received_server_event_seq=7),
    ),
    (
        "session.resume",
        {"session_id": "s", "resume_token": "t"},
        p.SessionResume(session_id="s", resume_token="t"),
    ),
    ("session.heartbeat", {"session_id": "another", "surprise": {"a": [1]}}, p.SessionHeartbeat()),
    ("session.event_ack", {"server_event_seq": 0}, p.SessionEventAck(server_event_seq=0)),
    ("session.close", {"reason": "goodbye"}, p.SessionClose(reason="goodbye")),
    ("session.close", {}, p.SessionClose(reason="client_close")),
    ("session.close", {"reason": ""}, p.SessionClose(reason="client_close")),
    ("session.close", {"reason": 5}, p.SessionClose(reason="client_close")),
    ("close", {"reason": "x"}, p.SessionClose(reason="x")),
    ("close_session", {}, p.SessionClose()),
    ("input_audio_buffer.append", {"audio": b64(AUDIO)}, p.AppendAudio(audio=AUDIO)),
    ("input_audio_buffer.append", {"delta": b64(AUDIO)}, p.AppendAudio(audio=AUDIO)),
    ("input_audio_buffer.append", {"audio": "", "delta": b64(AUDIO)}, p.AppendAudio(audio=AUDIO)),
    (
        "input_audio_buffer.append",
        {
            **{"audio": b64(AUDIO), "format": "audio/PCM", "sample_rate_hz": 24000.0, "duration_ms": 80},
            **{"audio_start_ms": 0, "audio_end_ms": 80.5, "is_speech": True, "speech_probability": 0.9},
            **{"vad": {"is_speech": False, "probability": 1, "silence_rms": 0.1, "more": 1}},
            **{"overlap_action": "ack", "force_barge_in": True, "force_listen": True, "text": "a"},
            **{"transcript": "b", "overlap_silence_rms": 0.5, "max_slice_nums": 1},
        },
        p.AppendAudio(
            audio=AUDIO,
            format="pcm16",
            sample_rate_hz=24_000,
            duration_ms=80,
            audio_start_ms=0,
            audio_end_ms=80.5,
            is_speech=True,
            speech_probability=0.9,
            vad=p.VadHint(is_speech=False, speech_probability=1, silence_rms=0.1),
            overlap_action="ack",
            force_barge_in=True,
            force_listen=True,
            text="a",
            transcript="b",
            overlap_silence_rms=0.5,
            max_slice_nums=1,
        ),
    ),
    (
        "input_audio_buffer.append",
        {
            **{"audio": b64(AUDIO), "input_audio_format": {"type": "audio/pcmu", "rate": 8000}},
            **{"audio_duration_ms": 8, "speech": False, "overlap": "drop"},
        },
        p.AppendAudio(
            audio=AUDIO,
            format="g711_ulaw",
            sample_rate_hz=8000,
            duration_ms=8,
            is_speech=False,
            overlap_action="drop",
        ),
    ),
    (
        "input_audio_buffer.append",
        {"audio": b64(AUDIO), "sample_rate": 48_000},
        p.AppendAudio(audio=AUDIO, sample_rate_hz=48_000),
    ),
    (
        "input_audio_buffer.append",
        {"video_frames": [b64(JPEG), None, b64(PNG)], "max_slice_nums": None},
        p.AppendAudio(video_frames=(JPEG, PNG), video_bytes=len(b64(JPEG)) + len(b64(PNG))),
    ),
    ("input_audio_buffer.commit", {}, p.Commit()),
    (
        "input_audio_buffer.commit",
        {"final": False, "response_create": False, "is_speech": False},
        p.Commit(final=False, response_create=False, is_speech=False),
    ),
    ("input_audio_buffer.commit", {"create_response": True}, p.Commit(response_create=True)),
    ("input.commit", {}, p.Commit(response_create=True, is_input_commit=True)),
    ("input.commit", {"response_create": False}, p.Commit(response_create=False, is_input_commit=True)),
    ("input_audio_buffer.clear", {}, p.ClearInput()),
    ("input.cancel", {}, p.CancelInput()),
    ("input.text.append", {"text": ""}, p.AppendText(text="")),
    ("input_text.append", {"text": "a"}, p.AppendText(text="a")),
    ("push_text", {"text": "a"}, p.AppendText(text="a")),
    ("barge_in", {}, p.BargeIn()),
    ("turn.signal", {"event": "user_started"}, p.TurnSignal(event="user_started")),
    ("signal_turn", {"event": "x", "payload": {"a": 1}}, p.TurnSignal(event="x", payload={"a": 1})),
    ("turn.signal", {"event": "timeout"}, p.SessionClose(reason="timeout")),
    ("turn.signal", {"event": "close"}, p.SessionClose()),
    ("turn.signal", {"event": "barge_in"}, p.BargeIn()),
    ("turn.signal", {"event": "input.cancel"}, p.CancelInput()),
    ("turn.signal", {"event": "response.cancel", "response_id": "r"}, p.CancelResponse(response_id="r")),
    (
        "turn.signal",
        {"event": "response.cancel", "payload": {"response_id": "r"}, "response_id": "q"},
        p.CancelResponse(response_id="r"),
    ),
    ("turn.signal", {"event": "output_audio_buffer.clear"}, p.ClearOutput()),
    (
        "turn.signal",
        {"event": "session.update", "payload": {"session": {"speed": 1}}},
        p.SessionUpdate(session={"speed": 1}),
    ),
    (
        "turn.signal",
        {"event": "session.update", "payload": {"speed": 1}},
        p.SessionUpdate(session={"speed": 1}),
    ),
    ("turn.signal", {"event": "conversation.item.create", "payload": {"item": USER}}, p.CreateItem(item=HI)),
    (
        "turn.signal",
        {"event": "conversation.item.retrieve", "payload": {"item_id": "m"}},
        p.RetrieveItem(item_id="m"),
    ),
    (
        "turn.signal",
        {"event": "conversation.item.delete", "payload": {"item_id": "m"}},
        p.DeleteItem(item_id="m"),
    ),
    (
        "turn.signal",
        {"event": "conversation.item.truncate", "payload": {"item_id": "m", "audio_end_ms": 80}},
        p.TruncateItem(item_id="m", audio_end_ms=80),
    ),
    ("response.create", {}, p.CreateResponse()),
    ("response.create", {"response": None}, p.CreateResponse()),
    (
        "response.create",
        {"response": {"instructions": None, "metadata": {"client_event_id": "r1"}}},
        p.CreateResponse(options=p.ResponseOptions(metadata={"client_event_id": "r1"})),
    ),
    (
        "response.create",
        {
            "response": {
                **{"instructions": "i", "temperature": 0.5, "max_output_tokens": 5, "tools": []},
                **{"tool_choice": "none", "output_modalities": ["audio"], "conversation": "none"},
                **{"prompt": {"id": "p"}, "extra_body": {"a": 1}, "surprise": 1},
                **{"audio": {"output": {"voice": "v", "speed": 1.5, "format": {"type": "audio/pcma"}}}},
            }
        },
        p.CreateResponse(
            options=p.ResponseOptions(
                instructions="i",
                temperature=0.5,
                max_output_tokens=5,
                tools=(),
                tool_choice="none",
                modalities=("audio",),
                conversation="none",
                prompt={"id": "p"},
                extra_body={"a": 1},
                voice="v",
                speed=1.5,
                output_format=p.AudioFormat("g711_alaw", 0),
            )
        ),
    ),
    (
        "response.create",
        {"response": {"output_audio_format": {"type": "pcm16", "rate": 8000}, "max_tokens": "inf"}},
        p.CreateResponse(options=p.ResponseOptions(output_format=p.AudioFormat("pcm16", 8000), unlimited_tokens=True)),
    ),
    ("response.cancel", {}, p.CancelResponse()),
    ("response.cancel", {"response_id": "r"}, p.CancelResponse(response_id="r")),
    ("output_audio_buffer.clear", {"response_id": None}, p.ClearOutput()),
    ("conversation.item.create", {"item": USER}, p.CreateItem(item=HI)),
    (
        "conversation.item.create",
        {"item": USER, "previous_item_id": "root"},
        p.CreateItem(item=HI, previous_item_id="root"),
    ),
    ("conversation.item.retrieve", {"item_id": "m"}, p.RetrieveItem(item_id="m")),
    ("conversation.item.delete", {"item_id": "m"}, p.DeleteItem(item_id="m")),
    (
        "conversation.item.truncate",
        {"item_id": "m", "audio_end_ms": 80.9, "content_index": 1},
        p.TruncateItem(item_id="m", audio_end_ms=80, content_index=1),
    ),
    ("playback.ack", {"played_ms": 80}, p.AckPlayback(played_ms=80)),
    ("playback.ack", {"played_ms": -1}, p.AckPlayback(played_ms=-1)),
    (
        "audio.playback_ack",
        {"played_ms": 80.5, "committed_ms": 40, "response_id": "r", "item_id": "i", "truncate": True},
        p.AckPlayback(played_ms=80.5, committed_ms=40, response_id="r", item_id="i", truncate=True),
    ),
]


@pytest.mark.parametrize(("type", "fields", "command"), GOOD)
def test_a_good_command_is_understood(type: str, fields: dict[str, Any], command: Any) -> None:
    assert read(type, **fields) == msgspec.structs.replace(command, event_id="evt_1")
    assert p.command_from_realtime(json.dumps({**fields, "type": type})).event_id is None
    assert p.command_from_realtime(json.dumps({**fields, "type": type, "event_id": None})) == command


@pytest.mark.parametrize(("type", "fields", "command"), GOOD)
def test_a_command_crosses_the_bus(type: str, fields: dict[str, Any], command: Any) -> None:
    whole = msgspec.structs.replace(command, event_id="evt_1")
    bare, frames = whole.detach()
    packed = p.encode_command(bare)
    assert p.decode_command(packed).attach([memoryview(frame) for frame in frames]) == whole
    assert AUDIO not in packed
    assert JPEG not in packed


def test_every_wire_type_is_tried() -> None:
    assert {type for type, _, _ in GOOD} == set(WIRE_TYPES) | set(ALIASES)
    assert len(WIRE_TYPES) == 21
    commands = {str(kind.__struct_config__.tag) for kind in get_args(p.DuplexCommand)}
    assert commands == set(WIRE_TYPES) - {"input.commit"}
    for _, _, command in GOOD:
        assert command.type in commands


# (wire type, fields, code, param)
BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("session.update", {"session": "now"}, "bad_event", "session"),
    ("session.resume", {}, "invalid_session_resume", "session_id"),
    ("session.resume", {"session_id": "s"}, "invalid_session_resume", "resume_token"),
    ("session.resume", {"session_id": 5, "resume_token": "t"}, "invalid_session_resume", "session_id"),
    ("session.resume", {"session_id": "", "resume_token": "t"}, "invalid_session_resume", "session_id"),
    *(
        (
            "session.resume",
            {"session_id": "s", "resume_token": "t", "last_received_server_event_seq": seq},
            "invalid_session_resume",
            "last_received_server_event_seq",
        )
        for seq in (-1, True, "1", 1.5)
    ),
    *(
        ("session.event_ack", fields, "invalid_event_ack", "server_event_seq")
        for fields in ({}, {"server_event_seq": -1}, {"server_event_seq": True}, {"server_event_seq": "1"})
    ),
    ("input_audio_buffer.append", {}, "bad_event", "audio"),
    ("input_audio_buffer.append", {"audio": ""}, "bad_event", "audio"),
    ("input_audio_buffer.append", {"audio": 5}, "bad_event", "audio"),
    ("input_audio_buffer.append", {"delta": 5}, "bad_event", "delta"),
    *(
        ("input_audio_buffer.append", {"audio": text, "format": name}, "bad_audio", "audio")
        for text in ("%%%%", "AAAA\nAAAA", "AAA", "AA-_", "AA=A", " AAAA", "AAAA=", "ÄÄÄÄ")
        for name in ("pcm16", "pcm_f32le")
    ),
    ("input_audio_buffer.append", {"audio": "AAAA", "format": "wav"}, "unsupported_audio_format", "format"),
    ("input_audio_buffer.append", {"audio": "AAAA", "format": 5}, "bad_event", "format"),
    ("input_audio_buffer.append", {"audio": "AAAA", "format": {}}, "bad_event", "format"),
    (
        "input_audio_buffer.append",
        {"audio": "AAAA", "input_audio_format": {"type": "mp3"}},
        "unsupported_audio_format",
        "input_audio_format",
    ),
    (
        "input_audio_buffer.append",
        {"audio": "AAAA", "format": {"type": "pcm", "rate": 4}},
        "bad_event",
        "format.rate",
    ),
    *(
        (
            "input_audio_buffer.append",
            {"audio": "AAAA", "sample_rate_hz": rate},
            "bad_event",
            "sample_rate_hz",
        )
        for rate in (4000, 400_000, True, "16000", 16000.5)
    ),
    ("input_audio_buffer.append", {"audio": "AAAA", "sample_rate": 1}, "bad_event", "sample_rate"),
    *(
        (
            "input_audio_buffer.append",
            {"audio": "AAAA", "video_frames": frames},
            "invalid_video_frames",
            param,
        )
        for frames, param in (
            ("frame", "video_frames"),
            ([5], "video_frames"),
            (["AAAA"], "video_frames"),
            ([""], "video_frames"),
            ([b64(JPEG)] * 3, "video_frames"),
            ([b64(JPEG) + "%%%%"], "video_frames"),
            ([b64(JPEG) + "A"], "video_frames"),
        )
    ),
    (
        "input_audio_buffer.append",
        {"audio": "AAAA", "max_slice_nums": 2},
        "invalid_video_frames",
        "max_slice",
    ),
    (
        "input_audio_buffer.append",
        {"audio": "AAAA", "max_slice_nums": True},
        "invalid_video_frames",
        "max_slice",
    ),
    *(
        ("input_audio_buffer.append", {"audio": "AAAA", name: value}, "bad_event", name)
        for name, value in (
            *(("duration_ms", "80"), ("duration_ms", True), ("audio_duration_ms", [])),
            *(("audio_start_ms", "0"), ("audio_end_ms", {}), ("is_speech", 1), ("speech", "yes")),
            *(("speech_probability", "high"), ("vad", 5), ("overlap_action", 5), ("overlap", True)),
            *(("force_barge_in", 1), ("force_listen", "no"), ("text", 5), ("transcript", [])),
            *(("overlap_silence_rms", True), ("duration_ms", 10**300)),
        )
    ),
    ("input_audio_buffer.append", {"audio": "AAAA", "vad": {"is_speech": 1}}, "bad_event", "vad.is_speech"),
    ("input_audio_buffer.commit", {"final": "yes"}, "bad_event", "final"),
    ("input_audio_buffer.commit", {"response_create": 1}, "bad_event", "response_create"),
    ("input_audio_buffer.commit", {"create_response": "no"}, "bad_event", "create_response"),
    ("input.commit", {"is_speech": 0}, "bad_event", "is_speech"),
    ("input.text.append", {}, "bad_event", "text"),
    ("push_text", {"text": 5}, "bad_event", "text"),
    ("turn.signal", {}, "bad_event", "event"),
    ("turn.signal", {"event": ""}, "bad_event", "event"),
    ("turn.signal", {"event": 5}, "bad_event", "event"),
    ("turn.signal", {"event": "x", "payload": 5}, "bad_event", "payload"),
    ("turn.signal", {"event": "conversation.item.create"}, "bad_event", "payload.item"),
    ("turn.signal", {"event": "conversation.item.delete"}, "missing_item_id", "payload.item_id"),
    ("response.create", {"response": "now"}, "bad_event", "response"),
    *(
        ("response.create", {"response": response}, code, f"response.{param}")
        for response, code, param in (
            ({"output_audio_format": "flac"}, "unsupported_audio_format", "output_audio_format"),
            ({"response_format": 5}, "bad_event", "response_format"),
            ({"audio": {"output": {"format": "mp3"}}}, "unsupported_audio_format", "audio.output.format"),
            ({"audio": {"output": {"voice": 5}}}, "bad_event", "audio.output.voice"),
            ({"temperature": "warm"}, "bad_event", "temperature"),
            ({"temperature": True}, "bad_event", "temperature"),
            ({"temperature": -1}, "bad_event", "temperature"),
            ({"metadata": 5}, "bad_event", "metadata"),
            ({"instructions": 5}, "bad_event", "instructions"),
            ({"voice": 5}, "bad_event", "voice"),
            ({"speed": "fast"}, "bad_event", "speed"),
            ({"max_output_tokens": 0}, "bad_event", "max_output_tokens"),
            ({"max_tokens": "many"}, "bad_event", "max_tokens"),
            ({"tools": {}}, "bad_event", "tools"),
            ({"tool_choice": 5}, "bad_event", "tool_choice"),
            ({"modalities": "audio"}, "bad_event", "modalities"),
            ({"conversation": 5}, "bad_event", "conversation"),
            ({"prompt": "p"}, "bad_event", "prompt"),
            ({"extra_body": []}, "bad_event", "extra_body"),
        )
    ),
    ("response.cancel", {"response_id": 5}, "bad_event", "response_id"),
    ("output_audio_buffer.clear", {"response_id": 5}, "bad_event", "response_id"),
    ("conversation.item.create", {"item": None}, "bad_event", "item"),
    ("conversation.item.create", {"item": "text"}, "bad_event", "item"),
    ("conversation.item.create", {"item": 5}, "bad_event", "item"),
    ("conversation.item.create", {"item": []}, "bad_event", "item"),
    ("conversation.item.create", {}, "bad_event", "item"),
    ("conversation.item.create", {"item": USER, "previous_item_id": 5}, "bad_event", "previous_item_id"),
    *(
        (f"conversation.item.{name}", fields, "missing_item_id", "item_id")
        for name in ("retrieve", "delete", "truncate")
        for fields in (
            {"audio_end_ms": 0},
            {"item_id": 5, "audio_end_ms": 0},
            {"item_id": "", "audio_end_ms": 0},
        )
    ),
    *(
        ("conversation.item.truncate", {"item_id": "m", **fields}, "bad_event", param)
        for fields, param in (
            ({}, "audio_end_ms"),
            ({"audio_end_ms": -1}, "audio_end_ms"),
            ({"audio_end_ms": True}, "audio_end_ms"),
            ({"audio_end_ms": "80"}, "audio_end_ms"),
            ({"audio_end_ms": 80, "content_index": -1}, "content_index"),
            ({"audio_end_ms": 80, "content_index": True}, "content_index"),
        )
    ),
    *(
        ("playback.ack", fields, "bad_event", param)
        for fields, param in (
            ({}, "played_ms"),
            ({"played_ms": "80"}, "played_ms"),
            ({"played_ms": True}, "played_ms"),
            ({"played_ms": None}, "played_ms"),
            ({"played_ms": 2**60}, "played_ms"),
            ({"played_ms": 80, "committed_ms": "80"}, "committed_ms"),
            ({"played_ms": 80, "response_id": 5}, "response_id"),
            ({"played_ms": 80, "item_id": []}, "item_id"),
            ({"played_ms": 80, "truncate": 1}, "truncate"),
        )
    ),
]


@pytest.mark.parametrize(("type", "fields", "code", "param"), BAD)
def test_a_bad_field_is_refused_by_name(type: str, fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(p.RealtimeProtocolError) as refused:
        read(type, **fields)
    error = refused.value
    assert (error.code, error.event_id) == (code, "evt_1")
    assert (error.param or "").startswith(param)
    assert error.message
    assert not p.is_undecodable(error)


def test_the_options_that_are_given_are_named() -> None:
    command = read("response.create", response={"voice": "v", "temperature": 0, "max_tokens": "inf"})
    assert isinstance(command, p.CreateResponse)
    assert command.options.given() == ("voice", "temperature", "unlimited_tokens")


@pytest.mark.parametrize(
    ("hints", "speech", "threshold"),
    [
        ({}, None, 0.003),
        ({"is_speech": True, "vad": {"is_speech": False}}, True, 0.003),
        ({"speech": False}, False, 0.003),
        ({"vad": {"is_speech": False}, "speech_probability": 0.9}, False, 0.003),
        ({"vad": {"is_speech": True}}, None, 0.003),
        ({"vad": {"speech_probability": 0.4}, "speech_probability": 0.9}, False, 0.003),
        ({"speech_probability": 0.5}, True, 0.003),
        ({"vad": {"silence_rms": 0.1}}, None, 0.1),
        ({"vad": {"silence_rms": 0.1}, "overlap_silence_rms": 0.2}, None, 0.2),
    ],
)
def test_hints_of_an_append(hints: dict[str, Any], speech: bool | None, threshold: float) -> None:
    command = read("input_audio_buffer.append", audio=b64(AUDIO), **hints)
    assert isinstance(command, p.AppendAudio)
    assert (command.hinted_speech(), command.silence_rms(0.003)) == (speech, threshold)
