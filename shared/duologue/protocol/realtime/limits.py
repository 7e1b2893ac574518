"""Reading the numbers that several objects of the API share."""

from __future__ import annotations

from duologue.protocol.realtime.errors import RealtimeProtocolError

MAX_TOKENS = 1_000_000
_UNLIMITED = frozenset({"inf", "infinity", "unlimited"})


def read_max_tokens(value: int | str | None, param: str) -> int | None:
    """A token limit: a positive integer; null and the words for infinity are None."""
    if value is None or (isinstance(value, str) and value.lower() in _UNLIMITED):
        return None
    if isinstance(value, str) or not 0 < value <= MAX_TOKENS:
        raise RealtimeProtocolError("bad_event", f'{param} must be a positive integer or "inf"', param=param)
    return value
