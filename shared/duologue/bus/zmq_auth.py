"""Who may dial, for CURVE: the ZAP handler of one ZeroMQ context, answered from the event loop.

Without it a CURVE listener lets in everybody who knows its public key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import zmq
from zmq.utils import z85

from duologue.bus.zmq_socket import LoopSocket

_ADDRESS: Final = "inproc://zeromq.zap.01"
_REQUEST_PARTS: Final = 8  # delimiter, version, id, domain, address, identity, mechanism, key


class ZapHandler:
    """Admits the connections whose CURVE public key is listed. One per context."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], loop: asyncio.AbstractEventLoop, allowed: Iterable[str]
    ) -> None:
        self._allowed = frozenset(z85.decode(key) for key in allowed)
        self.refused = 0
        socket = context.socket(zmq.ROUTER)
        socket.bind(_ADDRESS)
        self._socket = LoopSocket(socket, loop, self._request)

    def close(self) -> None:
        self._socket.close(0)

    def _request(self, parts: list[bytes]) -> None:
        # ROUTER puts the asking socket's identity in front.
        if len(parts) != _REQUEST_PARTS + 1:
            return
        sender, _, version, request_id, *_rest, mechanism, key = parts
        admitted = mechanism == b"CURVE" and key in self._allowed
        if not admitted:
            self.refused += 1
        status, text = (b"200", b"OK") if admitted else (b"400", b"unknown key")
        answer = [sender, b"", version, request_id, status, text, b"", b""]
        try:
            self._socket.socket.send_multipart(answer, zmq.NOBLOCK)
        except zmq.ZMQError:
            self.refused += 1  # the connection asking is gone; it will not be admitted
        self._socket.check_soon()
