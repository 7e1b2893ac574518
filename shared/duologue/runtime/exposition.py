"""`/metrics`, `/health`, `/readyz` and `/drain` of the processes that serve no HTTP otherwise (shards, workers).

A protocol of a few lines on asyncio: one request a connection, everything bounded, no task.

Rule 1. `/health` answers while the loop runs; it asks nothing of anybody.
Rule 2. What changes the process needs its operator's token, which is in its registration. What only tells needs none.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qsl

from duologue.runtime.health import Readiness
from duologue.runtime.metric_registry import CONTENT_TYPE

MAX_HEAD_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 32
REQUEST_TIMEOUT_S: Final = 5.0
BEARER: Final = "bearer "
DRAIN_S: Final = 30.0
MAX_DRAIN_S: Final = 3600.0
NEEDS_TOKEN: Final = "the token of this process's registration is needed"
_JSON: Final = "application/json"


class Asked(NamedTuple):
    """One request of an operator."""

    method: str
    path: str
    query: Mapping[str, str]
    bearer: str
    """The token that came with it; empty: none."""


Operator = Callable[[Asked], tuple[HTTPStatus, bytes] | None]
"""Status and JSON, or None: there is no such thing to ask."""


class ExpositionServer:
    """`metrics` renders the text exposition. `drain` is told in how many seconds the process is to be empty; None: it
    cannot. `operator` answers whatever else the process can be asked, in JSON, and judges `bearer` itself. `token` is
    what a drain needs; without one nobody may. `start` answers the address that it listens on."""

    def __init__(
        self,
        readiness: Readiness,
        metrics: Callable[[], bytes],
        drain: Callable[[float], None] | None = None,
        operator: Operator | None = None,
        *,
        token: str = "",
    ) -> None:
        self._operator = operator
        self._token = token
        self._drain = drain
        self._readiness = readiness
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self.connections: set[_Connection] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Raises `OSError` if the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port)
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        return str(bound_host), int(bound_port)

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await self._server.wait_closed()
        self._server = None

    def answer(self, method: str, path: str, query: str = "", bearer: str = "") -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body."""
        if self._operator is not None:
            answer = self._operator(Asked(method, path, dict(parse_qsl(query)), bearer))
            if answer is not None:
                return answer[0], _JSON, answer[1]
        if path == "/drain" and method == "POST" and self._drain is not None:
            if not may(bearer, self._token):
                return _error(HTTPStatus.UNAUTHORIZED, NEEDS_TOKEN)
            return self._begin_drain(query)
        if method not in ("GET", "HEAD"):
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE, self._metrics()
        if path == "/health":
            return HTTPStatus.OK, _JSON, b'{"status":"ok"}'
        if path == "/readyz":
            ready, reasons = self._readiness.verdict()
            body = json.dumps({"ready": ready, "reasons": reasons}).encode()
            return (HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE), _JSON, body
        return _error(HTTPStatus.NOT_FOUND)

    def _begin_drain(self, query: str) -> tuple[HTTPStatus, str, bytes]:
        try:
            deadline_s = float(dict(parse_qsl(query)).get("deadline_s", DRAIN_S))
        except ValueError:
            deadline_s = -1.0
        if self._drain is None or not 0 <= deadline_s <= MAX_DRAIN_S:
            return _error(HTTPStatus.BAD_REQUEST)
        self._drain(deadline_s)
        return HTTPStatus.ACCEPTED, _JSON, json.dumps({"draining": True, "deadline_s": deadline_s}).encode()


def may(bearer: str, token: str) -> bool:
    """Whether who asks has the process's token; what has none lets nobody in."""
    return bool(token) and secrets.compare_digest(bearer.encode(), token.encode())


def _error(status: HTTPStatus, why: str = "") -> tuple[HTTPStatus, str, bytes]:
    return status, _JSON, json.dumps({"error": why or status.phrase}).encode()


def _bearer(head: bytes) -> str:
    """The token of the request's `Authorization`, or nothing."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        value = value.strip()
        if name.lower() == "authorization" and value.lower().startswith(BEARER):
            return value[len(BEARER) :].strip()
    return ""


class _Connection(asyncio.Protocol):
    """One request, one answer, closed."""

    def __init__(self, server: ExpositionServer) -> None:
        self._server = server
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of it, so this cannot be asserted.
        self._transport = cast(asyncio.Transport, transport)
        if len(self._server.connections) >= MAX_CONNECTIONS:
            return self._write(HTTPStatus.SERVICE_UNAVAILABLE, _JSON, b'{"error":"too many connections"}')
        self._server.connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self.abort)
        return None

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._respond(bytes(self._head))
        elif len(self._head) > MAX_HEAD_BYTES:
            self._write(*_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.connections.discard(self)
        self._transport = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _respond(self, head: bytes) -> None:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return self._write(*_error(HTTPStatus.BAD_REQUEST))
        method, (target, _, query) = words[0], words[1].partition("?")
        status, kind, body = self._server.answer(method, target, query, _bearer(head))
        return self._write(status, kind, body, bare=method == "HEAD")

    def _write(self, status: HTTPStatus, kind: str, body: bytes, *, bare: bool = False) -> None:
        assert self._transport is not None
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + (b"" if bare else body))
        self._transport.close()
