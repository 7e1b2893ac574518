"""HTTP in the words of the OpenAI API: coded errors, their statuses, and a bounded request body.

Rule 1. Every error is `{"error": {type, code, message, param}}`; a bad field is named.
Rule 2. What may succeed later is 503 (429 where the client itself is too fast) and says when: `Retry-After`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import msgspec

from duologue.protocol.duplex import RealtimeProtocolError, error_type_of
from duologue.protocol.realtime.limits import check_numbers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON: Final = b"application/json"
RETRY_AFTER_MS: Final = 1000

_STATUS: Final = {
    "invalid_api_key": 401,
    "key_required": 403,
    "model_not_found": 404,
    "not_available": 404,
    "unknown_url": 404,
    "method_not_allowed": 405,
    "request_too_large": 413,
    "upgrade_required": 426,
    "timeout": 504,
}

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client closed its connection before its request was whole."""


def status_of(error: RealtimeProtocolError) -> int:
    """The HTTP status of an error."""
    status = _STATUS.get(error.code)
    if status is not None:
        return status
    if error.code == "resource_exhausted":
        return 503
    kind = error_type_of(error.code)
    if kind == "rate_limit_error":
        return 429
    if kind == "server_error":
        return 503 if error.retryable else 500
    return 400


def error_object(error: RealtimeProtocolError) -> dict[str, object]:
    """The object under `error`."""
    told: dict[str, object] = {
        "type": error.error_type,
        "code": error.code,
        "message": error.message,
        "param": error.param,
    }
    if error.retry_after_ms is not None:
        told["retry_after_ms"] = error.retry_after_ms
    return told


def error_answer(error: RealtimeProtocolError) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of an error."""
    status = status_of(error)
    headers = {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (429, 503):
        if error.retry_after_ms is None:
            error.retry_after_ms = RETRY_AFTER_MS
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_ms / 1000)))
    return status, _encode({"error": error_object(error)}), headers


async def answer(
    send: Send, status: int, body: bytes, headers: Mapping[str, str] = {}, *, content_type: bytes = JSON
) -> None:
    """One whole HTTP answer."""
    told = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    told += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises `request_too_large`, ClientGone."""
    too_large = RealtimeProtocolError("request_too_large", f"the request's body is over {limit} bytes")
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise too_large
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise too_large
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises `invalid_json`, `invalid_request`."""
    try:
        found = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RealtimeProtocolError("invalid_json", f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RealtimeProtocolError("invalid_request", "the body is a JSON object")
    check_numbers(found, None, "invalid_request")
    return found


def bearer_of(scope: Scope) -> str:
    """The key of the request's `Authorization` header; empty: there is none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            return key.strip() if scheme.lower() == "bearer" else ""
    return ""
