"""How large a legal command may be: what is echoed is refused by name before anything is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duologue.protocol.duplex import RealtimeProtocolError, command_from_realtime
from duologue.protocol.realtime.limits import MAX_ECHOED_BYTES, MAX_EVENT_ID, MAX_ITEM_ID

pytestmark = pytest.mark.unit

MANY = "x" * (MAX_ECHOED_BYTES + 1)


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}], **more}}


def refused(type: str, event_id: str = "e", **fields: Any) -> RealtimeProtocolError:
    with pytest.raises(RealtimeProtocolError) as caught:
        command_from_realtime(json.dumps({"type": type, "event_id": event_id, **fields}))
    assert len(caught.value.message) < 200
    return caught.value


@pytest.mark.parametrize(
    ("type", "fields", "param"),
    [
        ("conversation.item.create", text(MANY), "item"),
        ("conversation.item.create", text("hi", id="i" * (MAX_ITEM_ID + 1)), "item.id"),
        (
            "conversation.item.create",
            {"item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": MANY}},
            "item",
        ),
        ("session.update", {"session": {"instructions": MANY}}, "session"),
        ("session.update", {"session": {"tools": [{"name": "f", "description": MANY}]}}, "session"),
        ("session.update", {"metadata": {"a": MANY}}, "session"),
        ("response.create", {"response": {"metadata": {"a": MANY}}}, "response"),
        ("input_audio_buffer.append", {"audio": "AAAA", "transcript": MANY}, "transcript"),
        ("turn.signal", {"event": "session.update", "payload": {"instructions": MANY}}, "payload.session"),
    ],
)
def test_what_is_too_large_is_refused_by_name(type: str, fields: dict[str, Any], param: str) -> None:
    error = refused(type, **fields)
    assert (error.code, error.param, error.event_id) == ("bad_event", param, "e")


@pytest.mark.parametrize("type", ["session.heartbeat", "session.update", "turn.signal"])
def test_an_event_id_that_is_too_long_is_not_echoed(type: str) -> None:
    error = refused(type, "e" * (MAX_EVENT_ID + 1), event="close")
    assert (error.code, error.param, error.event_id) == ("bad_event", "event_id", None)
    assert refused("nobody.knows", "e" * (MAX_EVENT_ID + 1)).event_id is None
    assert refused("nobody.knows", "e" * MAX_EVENT_ID).event_id == "e" * MAX_EVENT_ID


def test_what_just_fits_is_taken() -> None:
    for fields in (
        {"type": "session.heartbeat", "event_id": "e" * MAX_EVENT_ID},
        {"type": "conversation.item.create", **text("x" * (MAX_ECHOED_BYTES - 300), id="i" * 100)},
        {"type": "session.update", "session": {"instructions": "x" * (MAX_ECHOED_BYTES - 100)}},
        {"type": "session.update", "session": {"ref_audio": MANY, "extra_body": {"voice": MANY}}},
    ):
        command_from_realtime(json.dumps(fields))
