"""Every error tells the same things; its class says what can be done about it."""

from __future__ import annotations

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Response

from duologue.client import (
    DuplexClientError,
    DuplexConnectionError,
    DuplexInvalidRequestError,
    DuplexProtocolError,
    DuplexRateLimitError,
    DuplexReconnectError,
    DuplexResumeError,
    DuplexServerError,
    DuplexSessionClosedError,
)
from duologue.client import errors as module
from duologue.client.errors import protocol_error
from duologue.client.websocket import _refusal
from duologue.protocol.duplex import ERROR_CODES, ErrorDetail

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("row", ERROR_CODES.values(), ids=lambda row: row.code)
def test_every_code_of_the_wire_has_the_class_of_its_type(row: module.DuplexClientError) -> None:
    error = protocol_error(ErrorDetail(type=row.error_type, code=row.code, message="m"))  # type: ignore[attr-defined]
    kind = {
        "invalid_request_error": DuplexInvalidRequestError,
        "server_error": DuplexServerError,
        "rate_limit_error": DuplexRateLimitError,
    }[row.error_type]  # type: ignore[attr-defined]
    assert isinstance(error, kind)
    assert isinstance(error, DuplexResumeError) == (row.code in module.FATAL_RESUME)


def test_a_type_of_tomorrow_is_a_protocol_error() -> None:
    assert type(protocol_error(ErrorDetail(type="new_error", code="c", message="m"))) is DuplexProtocolError


def test_what_the_server_said_is_all_there() -> None:
    detail = ErrorDetail(
        type="rate_limit_error",
        code="resource_exhausted",
        message="no free place",
        param="session.model",
        event_id="evt_1",
        retryable=True,
        retry_after_ms=1500,
    )
    error: DuplexClientError = protocol_error(detail)
    assert (error.code, error.param, error.event_id) == ("resource_exhausted", "session.model", "evt_1")
    assert (error.retryable, error.retry_after_ms, error.message) == (True, 1500, "no free place")
    assert str(error) == "resource_exhausted: no free place"


def test_the_errors_of_the_client_tell_the_same_things() -> None:
    closed = DuplexSessionClosedError("idle_ttl_expired")
    assert (closed.code, closed.reason, closed.retryable, closed.param) == (
        "session_closed",
        "idle_ttl_expired",
        False,
        None,
    )
    given_up = DuplexReconnectError(3, DuplexConnectionError("refused"))
    assert isinstance(given_up, DuplexConnectionError)
    assert "3 attempts: refused" in str(given_up) and given_up.code == "reconnect_failed"


def answer(status: int, body: bytes, **headers: str) -> Response:
    return Response(status, "Reason", Headers({key.replace("_", "-"): value for key, value in headers.items()}), body)


def test_an_upgrade_that_is_refused_tells_status_code_and_when_to_come_again() -> None:
    body = b'{"error":{"type":"rate_limit_error","code":"resource_exhausted","message":"no free place"}}'
    error = _refusal("ws://h/v1/realtime?token=secret", answer(503, body, Retry_After="2"))
    assert (error.status, error.code, error.retry_after_ms, error.retryable) == (503, "resource_exhausted", 2000, True)
    assert "no free place" in str(error) and "secret" not in str(error)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"error":"text"}', b'{"error":{"code":7}}'])
def test_an_answer_of_somebody_else_is_told_by_its_status(body: bytes) -> None:
    error = _refusal("ws://h", answer(404, body, Retry_After="soon"))
    assert (error.code, error.retry_after_ms, error.retryable) == ("http_404", None, False)
