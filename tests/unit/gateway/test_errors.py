"""What the gateway itself says to a client."""

from __future__ import annotations

import json

import pytest

from duologue.gateway.errors import MAX_ECHO, local_error, refusal_of
from duologue.protocol.duplex import RealtimeProtocolError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("openai", [False, True])
def test_the_clients_id_is_echoed_up_to_a_length(openai: bool) -> None:
    longest = "e" * MAX_ECHO
    assert json.loads(local_error("bad_event", "no", event_id=longest, openai=openai))["error"]["event_id"] == longest
    told = json.loads(local_error("bad_event", "no", event_id=longest + "e", openai=openai))
    assert told["error"]["event_id"] is None


def test_so_it_is_where_a_frame_was_not_understood() -> None:
    error = RealtimeProtocolError("bad_event", "no", event_id="e" * (MAX_ECHO + 1))
    assert json.loads(refusal_of(error, openai=True))["error"]["event_id"] is None
