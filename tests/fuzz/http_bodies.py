"""Bodies of HTTP requests: a chat completion, and a client secret that is to be minted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from fuzz import hostile, mutators
from fuzz.client_frames import KNOWN, told
from fuzz.examples import examples
from fuzz.target import Target
from fuzz.trees import Pairs, write_json

from duologue.gateway import secrets
from duologue.gateway.chat import request
from duologue.gateway.coded import error_answer, read_object
from duologue.gateway.secrets import merged, read_asked
from duologue.protocol.duplex import Dialect, RealtimeProtocolError, SessionConfig, decode_command, encode_command


def check(data: bytes) -> bool:
    """The body is read as either; what is refused has a status and an answer."""
    try:
        body = read_object(data)
    except RealtimeProtocolError as error:
        _refused(error)
        return False
    chat = _chat(body)
    return _secret(body) or chat


def _refused(error: RealtimeProtocolError) -> None:
    told(error)
    status, answer, headers = error_answer(error)
    assert 400 <= status < 600, status
    json.loads(answer)
    assert all(value.isascii() for value in headers.values())


def _chat(body: dict[str, Any]) -> bool:
    try:
        asked = request.read_request(body)
        for command in asked.commands:
            bare, media = command.detach()
            assert decode_command(encode_command(bare)).attach(media) == command, "a command changed on the bus"
        msgspec.msgpack.encode(asked.session)  # it goes to a shard
        SessionConfig.open(asked.session, dialect=Dialect.openai, model=asked.model)
    except RealtimeProtocolError as error:
        error.param = request.param_of(error.param)
        _refused(error)
        return False
    return True


def _secret(body: dict[str, Any]) -> bool:
    try:
        asked = read_asked(body)
        kept = msgspec.json.encode(asked.session)
        preset: dict[str, Any] = msgspec.json.decode(kept) if kept else {}
        session = merged(preset, body)
        msgspec.msgpack.encode(session)
        SessionConfig.open(asked.session, dialect=Dialect.openai, model="m")
    except RealtimeProtocolError as error:
        _refused(error)
        return False
    return True


# -- the corpus -------------------------------------------------------------------------------------------


def _content(pick: int) -> Any:
    kinds = ("text", "input_audio", "refusal", "image_url")
    sound = Pairs([("data", "AAABAAIA"), ("format", ("pcm16", "wav")[pick // 4 % 2])])
    return Pairs([("type", kinds[pick % 4]), ("text", "hello"), ("input_audio", sound), ("refusal", "no")])


_KNOWN = {
    **KNOWN,
    "content": _content,
    "extra_body": lambda pick: Pairs([("units", 3)]),
    "voice": lambda pick: Pairs([("id", "alto")]),
    "tool_choice": lambda pick: Pairs([("type", "function"), ("function", Pairs([("name", "f")]))]),
}


def _conversation() -> Pairs:
    call = Pairs([("id", "c1"), ("type", "function"), ("function", Pairs([("name", "f"), ("arguments", "{}")]))])
    messages = [
        Pairs([("role", "system"), ("content", "be brief")]),
        Pairs([("role", "user"), ("content", [_content(0), _content(1), _content(0)])]),
        Pairs([("role", "assistant"), ("tool_calls", [call])]),
        Pairs([("role", "tool"), ("tool_call_id", "c1"), ("content", "42")]),
        Pairs([("role", "assistant"), ("content", "so it is")]),
    ]
    return Pairs([("model", "m"), ("messages", messages), ("stream", True), ("max_tokens", 20)])


def seeds() -> Iterator[bytes]:
    for tree in examples(request._Written, _KNOWN, encoded=True):
        yield write_json(tree)
    for tree in examples(secrets._Written, KNOWN, encoded=True):
        yield write_json(tree)
    talk = _conversation()
    yield write_json(talk)
    for name, neutral in request._NEUTRAL.items():
        for value in (*neutral, 2, "x"):
            yield json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], name: value}).encode()
    for value in hostile.JSON:
        yield write_json(value)
        for name in ("model", "messages", "temperature", "max_tokens", "tools", "extra_body", "audio", "session"):
            yield write_json(Pairs([member for member in talk if member[0] != name] + [(name, value)]))
        yield b'{"expires_after":{"seconds":60},"session":{"metadata":{"x":%b}}}' % value
        yield b'{"expires_after":{"seconds":%b},"max_session_s":%b}' % (value, value)


TARGET = Target(
    "http-bodies",
    check,
    seeds,
    mutators.of_json(seeds),
    ("duologue.gateway.chat.request", "duologue.gateway.coded", "duologue.gateway.secrets"),
    base_bytes=8 << 20,
)
