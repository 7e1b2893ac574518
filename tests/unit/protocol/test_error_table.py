"""The one table of codes, and that everything in this room that is raised is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import duologue.protocol.duplex as door
from duologue.protocol.realtime import errors

pytestmark = pytest.mark.unit

ROOM = Path(errors.__file__).parents[1]
RAISED = re.compile(r'RealtimeProtocolError\(\s*"(\w+)"')


@pytest.mark.parametrize("row", errors.ERROR_CODES.values(), ids=errors.ERROR_CODES)
def test_a_row_is_whole(row: errors.ErrorCode) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", row.code)
    assert row.error_type in {"invalid_request_error", "server_error", "rate_limit_error"}
    assert row.gist
    assert "|" not in row.gist


def test_the_two_backpressures() -> None:
    rows = errors.ERROR_CODES
    assert (rows["input_backpressure"].error_type, rows["input_backpressure"].retryable) == (
        "rate_limit_error",
        True,
    )
    assert (rows["output_backpressure"].error_type, rows["output_backpressure"].retryable) == (
        "server_error",
        False,
    )


def test_every_code_that_is_raised_here_has_a_row() -> None:
    raised = {code for path in ROOM.rglob("*.py") for code in RAISED.findall(path.read_text())}
    assert len(raised) > 10
    assert raised <= errors.ERROR_CODES.keys()


def test_a_code_of_a_plugin_is_the_clients_fault() -> None:
    error = door.RealtimeProtocolError("some_plugin_code", "no", param="a")
    assert (error.error_type, error.retryable, error.retry_after_ms) == ("invalid_request_error", False, None)
    assert (error.code, error.message, error.event_id, door.is_undecodable(error)) == (
        *("some_plugin_code", "no", None, False),
    )
    assert error.under("session").param == "session.a"
    assert door.RealtimeProtocolError("bad_event", "no").under("session").param == "session"


def test_a_retryable_code_says_so_unless_told_otherwise() -> None:
    assert door.RealtimeProtocolError("resource_exhausted", "full").retryable
    assert not door.RealtimeProtocolError("resource_exhausted", "full", retryable=False).retryable
