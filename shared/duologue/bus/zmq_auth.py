"""Who may dial, for CURVE: the ZAP handler of one ZeroMQ context, answered from the event loop, and the watch for
those who do not even come so far.

Without the handler a CURVE listener lets in everybody who knows its public key.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from duologue.bus.curve import AllowedKeys
from duologue.bus.stats import BusStats
from duologue.bus.zmq_socket import LoopSocket

_log = logging.getLogger("duologue.bus")

_ADDRESS: Final = "inproc://zeromq.zap.01"
_REQUEST_PARTS: Final = 8  # delimiter, version, id, domain, address, identity, mechanism, key
_BROKEN_OFF: Final = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_QUIET_S: Final = 10.0
"""Strangers try again every second, and each would be a line: this is how long one line is enough."""


class DoorLog:
    """Says who was turned away, at most one line in `_QUIET_S`; the counter has them all."""

    def __init__(self, stats: BusStats, loop: asyncio.AbstractEventLoop) -> None:
        self._stats = stats
        self._loop = loop
        self._said_at = float("-inf")
        self._unsaid = 0

    def refuse(self, reason: str, what: str) -> None:
        self._stats.refuse_key(reason)
        if (now := self._loop.time()) - self._said_at < _QUIET_S:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} more since the last line)" if self._unsaid else ""
        self._said_at, self._unsaid = now, 0
        _log.warning("%s%s", what, more)


class ZapHandler:
    """Admits the connections whose CURVE public key is allowed. One per context."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
        allowed: AllowedKeys,
        door: DoorLog,
    ) -> None:
        self._allowed = allowed
        self._door = door
        socket = context.socket(zmq.ROUTER)
        socket.bind(_ADDRESS)
        self._socket = LoopSocket(socket, loop, self._request)

    def close(self) -> None:
        self._socket.close(0)

    def _request(self, parts: list[bytes]) -> None:
        # ROUTER puts the asking socket's identity in front.
        if len(parts) != _REQUEST_PARTS + 1:
            return
        sender, _, version, request_id, _domain, address, _identity, mechanism, key = parts
        admitted = mechanism == b"CURVE" and key in self._allowed
        if not admitted:
            where = address.decode("ascii", "replace")[:64]
            self._door.refuse("unknown_key", f"a connection from {where} is refused: its key is not allowed here")
        status, text = (b"200", b"OK") if admitted else (b"400", b"unknown key")
        answer = [sender, b"", version, request_id, status, text, b"", b""]
        try:
            self._socket.socket.send_multipart(answer, zmq.NOBLOCK)
        except zmq.ZMQError:
            _log.info("who asked to be let in is gone already")  # and so not admitted
        self._socket.check_soon()


class HandshakeWatch:
    """Counts the connections to a listener that never came to tell a key: no keys at all, another listener's, or
    another protocol."""

    def __init__(self, router: zmq.Socket[bytes], loop: asyncio.AbstractEventLoop, door: DoorLog) -> None:
        self._router = router
        self._door = door
        self._socket = LoopSocket(router.get_monitor_socket(_BROKEN_OFF), loop, self._heard)

    def close(self) -> None:
        self._router.disable_monitor()
        self._socket.close(0)

    def _heard(self, parts: list[bytes]) -> None:
        if parse_monitor_message(parts)["event"] & _BROKEN_OFF:
            what = "a connection is refused: it has no CURVE keys, or takes us for somebody else"
            self._door.refuse("handshake", what)
