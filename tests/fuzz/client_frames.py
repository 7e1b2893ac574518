"""What clients write: one frame to one command, and the session object that it may carry, in all three dialects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from fuzz import hostile, mutators
from fuzz.examples import examples
from fuzz.target import Target
from fuzz.trees import Pairs, write_json

from duologue.gateway.errors import refusal_of
from duologue.protocol.duplex import (
    CreateItem,
    CreateResponse,
    Dialect,
    DuplexCapabilities,
    RealtimeProtocolError,
    SessionConfig,
    SessionRuntimeView,
    SessionUpdate,
    command_from_realtime,
    decode_command,
    encode_command,
    session_object,
    session_patch,
    wire,
)
from duologue.protocol.duplex.decode import ALIASES, CARRIED
from duologue.protocol.realtime import item_input, response_input
from duologue.protocol.realtime.errors import ERROR_CODES, openai_code
from duologue.protocol.realtime.turn_detection import TurnDetection

CODES = {*ERROR_CODES, *map(openai_code, ERROR_CODES)}


def check(data: bytes) -> bool:
    try:
        command = command_from_realtime(text_of(data))
    except RealtimeProtocolError as error:
        told(error)
        return False
    bare, media = command.detach()
    body = encode_command(bare)
    assert decode_command(body).attach(media) == command, "a command does not come back from the bus the same"
    if isinstance(command, SessionUpdate):
        for dialect in Dialect:
            open_session(command.session, dialect)
    elif isinstance(command, (CreateItem, CreateResponse)):
        msgspec.json.encode(command)  # it is echoed
    return True


def text_of(data: bytes) -> str:
    """As a socket gives it, and beyond that with halves of surrogate pairs, which Python's own text can hold."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def told(error: RealtimeProtocolError) -> None:
    """A refusal has a code of the table and can be sent in every dialect."""
    assert error.code in CODES, error
    for openai in (False, True):
        refusal_of(error, openai=openai)


def open_session(session: dict[str, Any], dialect: Dialect) -> None:
    try:
        config = SessionConfig.open(session, dialect=dialect, model="loopback")
    except RealtimeProtocolError as error:
        told(error)
        return
    _kept(config)
    view = SessionRuntimeView(id="duplex-0", capabilities=DuplexCapabilities(), expires_at=0)
    msgspec.json.encode(session_object(config, view, dialect))
    try:
        _kept(config.updated(session))
    except RealtimeProtocolError as error:
        told(error)


def _kept(config: SessionConfig) -> None:
    """It is in every checkpoint."""
    body = msgspec.msgpack.encode(config)
    back = msgspec.msgpack.decode(body, type=SessionConfig)
    assert back == config, "a configuration does not come back from a checkpoint the same"


# -- the corpus -------------------------------------------------------------------------------------------


def _one(kind: Any) -> Any:
    def example(pick: int) -> Any:
        made = examples(kind, KNOWN, encoded=True)
        return made[pick % len(made)]

    return example


def _part(pick: int) -> Pairs:
    kinds = ("input_text", "input_audio", "input_image", "text", "audio", "output_text")
    image = "data:image/png;base64,iVBORw0KGgoAAAAN"
    told = Pairs([("type", kinds[pick % 6]), ("text", "hello"), ("audio", "AAABAA=="), ("image_url", image)])
    return Pairs([*told, ("transcript", "hello"), ("format", "pcm16"), ("sample_rate_hz", 24_000)])


KNOWN: dict[str, Any] = {
    "content": _part,
    "payload": lambda pick: Pairs([("response_id", "r"), ("item_id", "i"), ("session", Pairs([("voice", "a")]))]),
    "turn_detection": _one(TurnDetection),
    "format": lambda pick: Pairs([("type", "audio/pcm"), ("rate", 24_000)]),
    "tools": lambda pick: Pairs([("type", "function"), ("name", "f"), ("parameters", Pairs())]),
    "extra_body": lambda pick: Pairs([("auto_response", True), ("overlap_policy", "listen_only"), ("units", 3)]),
    "session": _one(session_patch._Patch),
    "response": _one(response_input._Written),
    "item": _one(item_input._WrittenItem),
}


def frames() -> Iterator[Any]:
    """Every wire type, with all its fields and with the least that it needs."""
    yield from examples(wire.WrittenCommand, KNOWN, encoded=True)
    yield from ({"type": alias} for alias in ALIASES)


def seeds() -> Iterator[bytes]:
    yield from map(write_json, (Pairs(one.items()) if isinstance(one, dict) else one for one in frames()))
    for event in sorted(CARRIED):
        yield write_json(Pairs([("type", "turn.signal"), ("event", event), ("payload", KNOWN["payload"](0))]))
    for role, kind in item_input._PART_TYPES:
        part = Pairs([*(member for member in _part(0) if member[0] != "type"), ("type", kind)])
        item = Pairs([("type", "message"), ("role", role), ("content", [part])])
        yield write_json(Pairs([("type", "conversation.item.create"), ("item", item)]))
    for value in hostile.JSON:
        for where in ("event_id", "type", "session", "item", "response", "payload", "audio", "played_ms"):
            yield b'{"type":"session.update","%b":%b}' % (where.encode(), write_json(value))
        yield b'{"type":"session.update","session":{"metadata":{"x":%b},"speed":%b}}' % (value, value)
        yield write_json(value)


TARGET = Target(
    "client-frames",
    check,
    seeds,
    mutators.of_json(seeds),
    (
        "duologue.protocol.duplex.decode",
        "duologue.protocol.duplex.wire",
        "duologue.protocol.duplex.session_patch",
        "duologue.protocol.duplex.session",
        "duologue.protocol.realtime.item_input",
        "duologue.protocol.realtime.response_input",
        "duologue.protocol.realtime.json_guard",
        "duologue.protocol.realtime.json_places",
        "duologue.protocol.realtime.strict",
        "duologue.protocol.realtime.formats",
        "duologue.protocol.realtime.limits",
        "duologue.protocol.realtime.turn_detection",
    ),
)
