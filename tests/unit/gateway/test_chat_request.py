"""A chat request as it is read: what is taken, and what is refused by which name."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from duologue.gateway.chat import request as requests
from duologue.gateway.chat.request import read_request
from duologue.gateway.chat.wav import read_wav, write_wav
from duologue.protocol.duplex import CreateItem, CreateResponse, RealtimeProtocolError

pytestmark = pytest.mark.unit

USER = {"role": "user", "content": "Hi"}
AUDIO = {"voice": "alloy", "format": "wav"}


def asked(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages or (USER,)), **more}


def sound(data: bytes, kind: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": kind}}


def items(*messages: dict[str, Any]) -> list[CreateItem]:
    commands = read_request(asked(*messages)).commands
    assert isinstance(commands[-1], CreateResponse)
    return [command for command in commands if isinstance(command, CreateItem)]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"messages": [USER]}, "invalid_request", "model"),
        ({"model": "m"}, "invalid_request", "messages"),
        ({"model": "m", "messages": []}, "invalid_request", "messages"),
        (asked({"role": "system", "content": "x"}), "invalid_request", "messages"),
        (asked({"role": "king", "content": "x"}), "invalid_request", "messages[0].role"),
        (asked({"role": "user"}), "invalid_request", "messages[0].content"),
        (asked({"role": "user", "content": []}), "invalid_request", "messages[0].content"),
        (asked({"role": "user", "content": [{"type": "text"}]}), "invalid_request", "messages[0].content[0].text"),
        (asked({"role": "user", "content": [{"type": "image_url"}]}), "unsupported", "messages[0].content[0].type"),
        (asked(USER, {"role": "tool", "content": "x"}), "invalid_request", "messages[1].tool_call_id"),
        (asked(USER, {"role": "assistant", "audio": {"id": "a"}}), "unsupported", "messages[1].audio"),
        (
            asked({"role": "user", "content": [sound(b"x", "mp3")]}),
            "unsupported_audio_format",
            "messages[0].content[0].input_audio.format",
        ),
        (asked({"role": "user", "content": [sound(b"RIFF")]}), "bad_audio", "messages[0].content[0].input_audio.data"),
        (asked(n=2), "unsupported", "n"),
        (asked(logprobs=True), "unsupported", "logprobs"),
        (asked(temperature="hot"), "invalid_request", "temperature"),
        (asked(stream="yes"), "invalid_request", "stream"),
        (asked(modalities=["text", "audio"]), "invalid_request", "audio"),
        (asked(modalities=["audio"], audio=AUDIO | {"format": "mp3"}), "unsupported_audio_format", "audio.format"),
        (asked(modalities=["audio"], audio=AUDIO, stream=True), "unsupported_audio_format", "audio.format"),
        (asked(tools=[{"type": "function"}]), "invalid_request", "tools[0].function"),
        (asked(*[USER] * (requests.MAX_MESSAGES + 1)), "invalid_request", "messages"),
        (asked(USER, USER | {"content": "x" * requests.MAX_TEXT_BYTES}), "invalid_request", "messages"),
    ],
)
def test_what_is_wrong_is_refused_by_name(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        read_request(body)
    assert (refused.value.code, refused.value.param) == (code, param)


def test_bad_base64_is_bad_audio() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "%%%", "format": "wav"}}
    with pytest.raises(RealtimeProtocolError, match="bad_audio"):
        read_request(asked({"role": "user", "content": [part]}))


def test_what_asks_for_nothing_or_only_describes_is_taken() -> None:
    read_request(asked(n=1, logprobs=False, top_p=1, seed=7, user="me", store=False, response_format={"type": "text"}))


def test_the_session_of_a_turn() -> None:
    request = read_request(
        asked(
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            USER,
            {"role": "system", "content": "Later."},
            modalities=["text", "audio"],
            audio={"format": "pcm16", "voice": {"id": "v"}},
            max_completion_tokens=9,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
            tool_choice={"type": "function", "function": {"name": "f"}},
            extra_body={"x": 1, "auto_response": True},
        )
    )
    session = request.session
    assert session["instructions"] == "Be brief.\nBe kind."
    assert (session["output_modalities"], session["audio"]["output"]["voice"]) == (["audio"], "v")
    assert session["audio"]["input"]["turn_detection"] is None
    assert session["extra_body"] == {"x": 1, "auto_response": False}, "a chat turn never answers by itself"
    assert session["max_output_tokens"] == 9
    assert session["tools"] == [{"type": "function", "name": "f", "parameters": {}}]
    assert session["tool_choice"] == {"type": "function", "name": "f"}
    assert (request.stream, request.include_usage, request.audio_format) == (True, True, "pcm16")
    said = [command.item for command in request.commands if isinstance(command, CreateItem)]
    assert [(item.role, item.text) for item in said] == [("user", "Hi"), ("system", "Later.")]


def test_sound_is_an_item_of_its_own_between_the_texts() -> None:
    parts = [
        {"type": "text", "text": "Listen"},
        {"type": "text", "text": "to this:"},
        sound(write_wav(b"\x01\x00\x02\x00", 16_000)),
        {"type": "text", "text": "Well?"},
        sound(b"\x05\x00", "pcm16"),
    ]
    found = items({"role": "user", "content": parts})
    assert [item.item.text for item in found] == ["Listen\nto this:", "", "Well?", ""]
    first, second = found[1].audio[0], found[3].audio[0]
    assert (first.audio, first.sample_rate_hz) == (b"\x01\x00\x02\x00", 16_000)
    assert (second.audio, second.sample_rate_hz) == (b"\x05\x00", 24_000)


def test_calls_and_their_results_are_items() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    found = items(
        USER,
        {"role": "assistant", "content": "Wait.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    )
    assert [one.item.type for one in found] == ["message", "message", "function_call", "function_call_output"]
    assert (found[2].item.call_id, found[2].item.arguments) == ("c1", '{"a":1}')
    assert (found[3].item.call_id, found[3].item.output) == ("c1", "42")


def test_stereo_is_averaged_and_other_widths_are_refused() -> None:
    stereo = bytearray(write_wav(b"\x02\x00\x04\x00" * 3, 8000))
    stereo[22:24], stereo[32:34] = b"\x02\x00", b"\x04\x00"
    assert read_wav(bytes(stereo), "p").pcm == b"\x03\x00" * 3
    stereo[34:36] = b"\x18\x00"
    with pytest.raises(RealtimeProtocolError) as refused:
        read_wav(bytes(stereo), "p")
    assert (refused.value.code, refused.value.param) == ("unsupported_audio_format", "p")
