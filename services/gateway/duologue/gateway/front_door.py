"""A TCP connection before it is a WebSocket: uvicorn's HTTP protocol, with bounds on what nobody has let in.

Rule 1. A connection is dropped unless a whole request and its answer are through in `patience_s`, each time
        anew: who is silent, sends half a request or reads no answer is not held.
        A route whose answer takes longer says so (`PATIENCE` among the scope's extensions) and gets its own limit.
Rule 2. Beyond `limit` of them a further one is answered 503 and closed. An upgrade leaves the count: from there
        on admission and the first message's time limit decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from duologue.protocol.duplex import error_type_of

PER_WAITING_SOCKET: Final = 2
"""Connections that are no WebSocket yet, for each socket that may wait for its first message."""

PATIENCE: Final = "duologue.patience"
"""A scope's extension: its `extend(seconds)` gives this request and its answer so long from now."""

_BODY: Final = msgspec.json.encode(
    {
        "error": {
            "type": error_type_of("resource_exhausted"),
            "code": "resource_exhausted",
            "message": "too many connections that are no WebSocket yet",
        }
    }
)
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class FrontDoor:
    """The connections of one listening gateway. `refused` is called for each that is turned away."""

    def __init__(self, limit: int, patience_s: float, refused: Callable[[], None]) -> None:
        self.limit = limit
        self.patience_s = patience_s
        self.refused = refused
        self.inside = 0

    def protocol(self) -> type[HttpToolsProtocol]:
        """The class that uvicorn is to run for each connection."""

        class Bounded(HttpConnection):
            door = self

        return Bounded


class HttpConnection(HttpToolsProtocol):
    """See the module."""

    door: FrontDoor
    _counted = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        door = self.door
        if door.inside >= door.limit:
            door.refused()
            transport.write(_FULL)
            transport.close()
            return
        door.inside += 1
        self._counted = True
        self._wait()

    def _wait(self, patience_s: float | None = None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        patience_s = self.door.patience_s if patience_s is None else patience_s
        self._deadline = self.loop.call_later(patience_s, self.transport.abort)

    def _extend(self, patience_s: float) -> None:
        if self._counted and not self.transport.is_closing():
            self._wait(patience_s)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {PATIENCE: {"extend": self._extend}}

    def _leave(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._counted:
            self._counted = False
            self.door.inside -= 1

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._counted:
            self._wait()

    def handle_websocket_upgrade(self) -> None:
        self._leave()
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)
