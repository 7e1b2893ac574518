"""Socket-local messages: errors and notices that the gateway itself says, without a sequence number.

They are rendered in the words of the client's dialect and written at once, in the order they arose.
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import msgspec

from duologue.protocol.duplex import (
    ERROR_CODES,
    RealtimeProtocolError,
    error_type_of,
    openai_code,
)

MAX_ECHO: Final = 1024
"""Characters of a client's own id that are echoed; a longer one is not: no event of ours grows with it."""


def event_id() -> str:
    """A fresh id for one server event."""
    return f"event_{uuid4().hex}"


def local_event(type_: str, **fields: object) -> bytes:
    """One unnumbered event; fields that are None are left out."""
    event = {"type": type_, "event_id": event_id()}
    event.update({name: value for name, value in fields.items() if value is not None})  # type: ignore[misc]
    return msgspec.json.encode(event)


def local_error(
    code: str,
    message: str,
    *,
    param: str | None = None,
    event_id: str | None = None,
    retryable: bool | None = None,
    retry_after_ms: int | None = None,
    head_seq: int | None = None,
    openai: bool = False,
) -> bytes:
    """One `error` event. `event_id` is the client's own id, which is echoed up to `MAX_ECHO` characters."""
    row = ERROR_CODES.get(code)
    if retryable is None:
        retryable = row is not None and row.retryable
    error: dict[str, object] = {
        "type": error_type_of(code),
        "code": openai_code(code) if openai else code,
        "message": message,
        "param": param,
        "event_id": event_id if event_id is None or len(event_id) <= MAX_ECHO else None,
        "retryable": retryable,
    }
    if retry_after_ms is not None:
        error["retry_after_ms"] = retry_after_ms
    if head_seq is not None:
        error["head_seq"] = head_seq
    return local_event("error", error=error)


def refusal_of(error: RealtimeProtocolError, *, openai: bool) -> bytes:
    """The `error` event of a frame that was not understood."""
    return local_error(
        error.code,
        error.message,
        param=error.param,
        event_id=error.event_id,
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
        openai=openai,
    )
