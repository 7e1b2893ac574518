"""Reading the numbers that several objects of the API share, and how large one command may be.

What a client writes is echoed, several times, into a bounded output: a command that is legal and huge is refused
when it is read, by name, and costs nobody a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.json_places import find_beyond_64_bits

MAX_EVENT_ID, MAX_ITEM_ID = 1024, 512
"""Characters."""
MAX_ECHOED_BYTES = 256 * 1024
"""Of an item, of what one `session.update` changes, of the options of one response, as JSON."""

EventId = Annotated[str, msgspec.Meta(max_length=MAX_EVENT_ID)]
ItemId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ITEM_ID)]
Hint = Annotated[str, msgspec.Meta(max_length=MAX_ECHOED_BYTES // 4)]
"""A transcript or text that comes with an append."""

MIN_SPEED, MAX_SPEED = 0.25, 1.5
"""How fast a voice speaks; 1 is its own pace."""

MAX_TOKENS = 1_000_000
_pack = msgspec.msgpack.Encoder().encode
_UNLIMITED = frozenset({"inf", "infinity", "unlimited"})


def check_size(value: Mapping[str, Any] | msgspec.Struct, param: str, apart: Iterable[str] = ()) -> None:
    """Refuse what is more than `MAX_ECHOED_BYTES` as JSON; the keys in `apart` have bounds of their own."""
    if isinstance(value, Mapping):
        value = {key: one for key, one in value.items() if key not in apart}
    if len(msgspec.json.encode(value)) > MAX_ECHOED_BYTES:
        raise RealtimeProtocolError("bad_event", f"more than {MAX_ECHOED_BYTES} bytes of {param}", param=param)


def check_numbers(value: Any, param: str | None, code: str = "bad_event") -> None:
    """Refuse an integer beyond 64 bits, wherever it is: JSON can write it, no message and no checkpoint can hold it."""
    try:
        _pack(value)
    except OverflowError:
        place = ".".join(filter(None, (param, find_beyond_64_bits(value)))) or None
        raise RealtimeProtocolError(code, f"{place} is beyond 64 bits", param=place) from None


def read_max_tokens(value: int | str | None, param: str) -> int | None:
    """A token limit: a positive integer; null and the words for infinity are None."""
    if value is None or (isinstance(value, str) and value.lower() in _UNLIMITED):
        return None
    if isinstance(value, str) or not 0 < value <= MAX_TOKENS:
        raise RealtimeProtocolError("bad_event", f'{param} must be a positive integer or "inf"', param=param)
    return value


def read_speed(value: int | float, param: str) -> int | float:
    """How fast the voice is to speak, as it was written."""
    if not MIN_SPEED <= value <= MAX_SPEED:
        raise RealtimeProtocolError("bad_event", f"{param} must be from {MIN_SPEED} to {MAX_SPEED}", param=param)
    return value
