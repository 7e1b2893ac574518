"""What can go wrong for a client. Every error tells the same things, whatever its class.

DuplexClientError                   code, message, param, event_id, retryable, retry_after_ms
 +- DuplexConnectionError           no connection, or it was lost and is not resumed
 |   +- DuplexRefusedError          the upgrade was answered in HTTP: status
 |   +- DuplexReconnectError        a lost connection was given up: attempts, last
 +- DuplexProtocolError             the server answered with an `error` event: error
 |   +- DuplexInvalidRequestError   the command is wrong; the same one will never succeed
 |   |   +- DuplexResumeError       the session cannot be resumed any more
 |   +- DuplexServerError           a fault of the server or of the model
 |   +- DuplexRateLimitError        no room now; `retry_after_ms` says when to come again
 +- DuplexSessionClosedError        the session is over: reason, expected
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from duologue.protocol.duplex import ErrorDetail

#: A resume that is answered with one of these will not succeed later either.
FATAL_RESUME: Final = frozenset(
    {
        "invalid_session_resume",
        "session_resume_expired",
        "unsupported_session_resume",
        "invalid_resume_token",
        "session_resume_conflict",
    }
)


class DuplexClientError(Exception):
    """Base of all errors of this package. What an error does not know is None, "" or False."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        param: str | None = None,
        event_id: str | None = None,
        retryable: bool = False,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        """The field that is wrong."""
        self.event_id = event_id
        """The id of the command that is answered."""
        self.retryable = retryable
        """The same request may succeed later, unchanged."""
        self.retry_after_ms = retry_after_ms
        """How long to wait before that, where the server knows."""


class DuplexConnectionError(DuplexClientError):
    """No connection: refused, lost, or silent."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "connection_failed",
        retryable: bool = True,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message, code=code, retryable=retryable, retry_after_ms=retry_after_ms)


class DuplexRefusedError(DuplexConnectionError):
    """The server answered the upgrade request in HTTP, with `status`; a 4xx but 429 is final."""

    def __init__(self, message: str, *, status: int, code: str, retry_after_ms: int | None = None) -> None:
        retryable = status == 429 or status >= 500
        super().__init__(message, code=code, retryable=retryable, retry_after_ms=retry_after_ms)
        self.status = status


class DuplexReconnectError(DuplexConnectionError):
    """A lost connection was given up after `attempts`; `last` is what the last of them met."""

    def __init__(self, attempts: int, last: DuplexClientError) -> None:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"the connection was lost and given up after {times}: {last}", code="reconnect_failed")
        self.attempts = attempts
        self.last = last


class DuplexProtocolError(DuplexClientError):
    """An `error` event of the server; `error` is the whole of it."""

    def __init__(self, error: ErrorDetail) -> None:
        super().__init__(
            f"{error.code}: {error.message}",
            code=error.code,
            param=error.param,
            event_id=error.event_id,
            retryable=error.retryable,
            retry_after_ms=None if error.retry_after_ms is UNSET else error.retry_after_ms,
        )
        self.message = error.message
        self.error = error


class DuplexInvalidRequestError(DuplexProtocolError):
    """The command is wrong: `param` names the field, if it is one."""


class DuplexResumeError(DuplexInvalidRequestError):
    """The session is gone for this client: only a new one can be opened."""


class DuplexServerError(DuplexProtocolError):
    """A fault of the server or of the model."""


class DuplexRateLimitError(DuplexProtocolError):
    """No room now."""


class DuplexSessionClosedError(DuplexClientError):
    """The session ended. `expected` when this side asked for it."""

    def __init__(self, reason: str, *, expected: bool = False) -> None:
        super().__init__(f"the session is closed: {reason}", code="session_closed")
        self.reason = reason
        self.expected = expected


_BY_TYPE: Final[dict[str, type[DuplexProtocolError]]] = {
    "invalid_request_error": DuplexInvalidRequestError,
    "server_error": DuplexServerError,
    "rate_limit_error": DuplexRateLimitError,
}


def protocol_error(error: ErrorDetail) -> DuplexProtocolError:
    """The error of an `error` event, in its class."""
    if error.code in FATAL_RESUME:
        return DuplexResumeError(error)
    return _BY_TYPE.get(error.type, DuplexProtocolError)(error)
