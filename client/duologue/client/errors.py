"""What can go wrong for a client.

DuplexClientError
 +- DuplexConnectionError        no connection, or it was lost and could not be resumed
 +- DuplexProtocolError          the server answered with an error: code, param, event_id, retryable
 +- DuplexSessionClosedError     the session is over: reason
"""

from __future__ import annotations

from msgspec import UNSET

from duologue.protocol.duplex import ErrorDetail


class DuplexClientError(Exception):
    """Base of all errors of this package."""


class DuplexConnectionError(DuplexClientError):
    """No socket: refused, lost, or every attempt to resume failed."""


class DuplexProtocolError(DuplexClientError):
    """An `error` event of the server."""

    def __init__(self, error: ErrorDetail) -> None:
        self.code, self.message = error.code, error.message
        self.param, self.event_id = error.param, error.event_id
        self.retryable = error.retryable
        self.retry_after_ms = None if error.retry_after_ms is UNSET else error.retry_after_ms
        self.error = error
        super().__init__(f"{self.code}: {self.message}")


class DuplexSessionClosedError(DuplexClientError):
    """The session ended. `expected` when this side asked for it."""

    def __init__(self, reason: str, *, expected: bool = False) -> None:
        self.reason, self.expected = reason, expected
        super().__init__(f"the session is closed: {reason}")
