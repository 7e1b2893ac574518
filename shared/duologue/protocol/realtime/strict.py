"""Typed reading of JSON objects: msgspec does the checking, this turns its complaint into a coded error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from duologue.protocol.realtime.errors import RealtimeProtocolError

T = TypeVar("T")

_PATH = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")


def describe(error: msgspec.ValidationError) -> tuple[str, str | None]:
    """What is wrong, and the dotted path of the field (None: the object itself)."""
    text = str(error)
    where = _PATH.search(text)
    path = where["path"].lstrip(".") if where else ""
    message = text[: where.start()] if where else text
    missing = _MISSING.search(message)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        message = "is required"
    return message, path or None


def refusal(
    error: msgspec.ValidationError,
    codes: Mapping[str, str] = {},
    *,
    default: str = "bad_event",
    rename: Mapping[str, str] = {},
) -> RealtimeProtocolError:
    """The coded error of a failed conversion; `codes` gives the code by top-level field."""
    message, path = describe(error)
    head = re.split(r"[.\[]", path)[0] if path else ""
    if path and head in rename:
        path = rename[head] + path[len(head) :]
    told = f"{path}: {message}" if path else message
    return RealtimeProtocolError(codes.get(head, default), told, param=path)


def read(value: Any, kind: type[T], codes: Mapping[str, str] = {}, *, default: str = "bad_event") -> T:
    """Convert JSON data to a typed struct; no coercion of any kind. Raises RealtimeProtocolError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise refusal(error, codes, default=default) from None
