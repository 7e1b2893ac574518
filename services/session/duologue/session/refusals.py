"""What a gateway is told when a session cannot be opened or attached here.

The error is rendered for the client's dialect; `event_id` of the event itself is the gateway's to give.
"""

from __future__ import annotations

from typing import Final

import msgspec

from duologue.bus.messages import SessionRefused
from duologue.protocol.realtime.dialect import Dialect
from duologue.protocol.realtime.errors import RealtimeProtocolError, openai_code
from duologue.protocol.realtime.events import ErrorDetail

POLICY: Final = 1008
INTERNAL: Final = 1011
RESTART: Final = 1012
TRY_AGAIN: Final = 1013

RETRY_AFTER_MS: Final = 1000
"""Told with `resource_exhausted`: a session's end frees its slot within this order of time."""

_encoder = msgspec.json.Encoder()


class _Event(msgspec.Struct, frozen=True, gc=False):
    type: str
    error: ErrorDetail


def exhausted(message: str) -> RealtimeProtocolError:
    return RealtimeProtocolError("resource_exhausted", message, retry_after_ms=RETRY_AFTER_MS)


def store_away() -> RealtimeProtocolError:
    return RealtimeProtocolError(
        "store_unavailable", "the session store does not answer", retry_after_ms=RETRY_AFTER_MS
    )


def close_code_of(error: RealtimeProtocolError) -> int:
    """1013 for what may succeed later, 1011 for our own faults, 1008 for the client's."""
    if error.retryable:
        return TRY_AGAIN
    return INTERNAL if error.error_type == "server_error" else POLICY


def render_error(error: RealtimeProtocolError, dialect: str) -> bytes:
    """The `error` event, JSON, without an `event_id` of its own."""
    code = error.code if dialect == Dialect.duplex.value else openai_code(error.code)
    detail = ErrorDetail(
        type=error.error_type,
        code=code,
        message=error.message,
        event_id=error.event_id,
        param=error.param,
        retryable=error.retryable,
        retry_after_ms=msgspec.UNSET if error.retry_after_ms is None else error.retry_after_ms,
    )
    return _encoder.encode(_Event("error", detail))


def refused(session_id: str, error: RealtimeProtocolError, dialect: str) -> tuple[SessionRefused, tuple[bytes]]:
    """The message and its frame."""
    message = SessionRefused(session_id, error.code, close_code_of(error))
    return message, (render_error(error, dialect),)
