"""What upstream errors are called here. SANS-I/O.

Rule 1. A code that the table of this server knows keeps its name; OpenAI's names are put back into the table's.
Rule 2. Any other becomes `upstream_failed`: what a foreign server says goes into the message, cut to a length.
"""

from __future__ import annotations

from typing import Any, Final

from duologue.protocol.duplex import ERROR_CODES

UNAVAILABLE: Final = "upstream_unavailable"
REFUSED: Final = "upstream_refused"
LOST: Final = "upstream_lost"
TIMEOUT: Final = "upstream_timeout"
FAILED: Final = "upstream_failed"
BACKPRESSURE: Final = "upstream_backpressure"
FULL: Final = "resource_exhausted"

MAX_CHARS: Final = 300
_FROM_OPENAI: Final = {row.openai: row.code for row in ERROR_CODES.values() if row.openai}
_NOT_OURS: Final = frozenset({"invalid_api_key", "internal_error", "engine_error", "engine_dead", "session_expired"})
"""Of that server, and not to be taken for this one's own."""
NOTHING_TO_CANCEL: Final = frozenset({"response_not_active"})


def code_and_message(error: Any) -> tuple[str, str]:
    """Of an `error` object, however incomplete."""
    if not isinstance(error, dict):
        return FAILED, "the upstream server told an error without a word"
    told = error.get("code") or error.get("type") or ""
    code = _FROM_OPENAI.get(told, told) if isinstance(told, str) else ""
    message = str(error.get("message") or told or "no reason was given")[:MAX_CHARS]
    if code in ERROR_CODES and code not in _NOT_OURS:
        return code, message
    return FAILED, f"{code}: {message}"[:MAX_CHARS] if code else message


def label(code: str) -> str:
    """For a metric: only names of the table, so that a foreign server cannot make series."""
    return code if code in ERROR_CODES else "other"


def of_handshake(status: int) -> tuple[str, str]:
    """The upgrade was answered with an HTTP status."""
    if status in (401, 403):
        return REFUSED, f"the upstream server refuses the key (HTTP {status})"
    if status in (429, 503):
        return FULL, f"the upstream server takes no more sessions (HTTP {status})"
    if 400 <= status < 500:
        return REFUSED, f"the upstream server refuses the session (HTTP {status})"
    return UNAVAILABLE, f"the upstream server does not take connections (HTTP {status})"
