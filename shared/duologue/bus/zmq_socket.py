"""One ZeroMQ socket served by an event loop through its file descriptor.

ZeroMQ's FD is edge-triggered: it speaks once, and any call on the socket may eat the word. So EVENTS is
read again after every drain and after every send; a drain is bounded per turn and goes on in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import zmq

DRAIN_MESSAGES: Final = 64
DRAIN_BYTES: Final = 4 * 1024 * 1024

# The wrapper's enums and keyword handling cost more than the calls themselves: plain numbers, plain methods.
NOBLOCK: Final = int(zmq.NOBLOCK)
MORE: Final = int(zmq.SNDMORE | zmq.NOBLOCK)
_RCVMORE: Final = int(zmq.RCVMORE)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)


class LoopSocket:
    """Owns `socket`. `on_parts` gets each multipart message, `on_wake` is called whenever something moved
    (a peer may take more again)."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        loop: asyncio.AbstractEventLoop,
        on_parts: Callable[[list[bytes]], None],
        on_wake: Callable[[], None],
    ) -> None:
        self.socket = socket
        self.closed = False
        self._loop = loop
        self._on_parts = on_parts
        self._on_wake = on_wake
        self._fd = int(socket.getsockopt(zmq.FD))
        self._check_scheduled = False
        self._checking = False
        loop.add_reader(self._fd, self._woken)
        self.check_soon()

    def check_soon(self) -> None:
        """Look at EVENTS in the next turn: to be called after anything was done with the socket."""
        if not self._check_scheduled and not self._checking and not self.closed:
            self._check_scheduled = True
            self._loop.call_soon(self._check)

    def drain(self) -> None:
        """Hand over what is there, up to the bound of one turn."""
        if self.closed:
            return
        budget = DRAIN_BYTES
        receive, get = self.socket.recv, self.socket.getsockopt
        for _ in range(DRAIN_MESSAGES):
            try:
                part = receive(NOBLOCK)
            except zmq.Again:
                return
            parts = [part]
            budget -= len(part)
            while get(_RCVMORE):
                part = receive(NOBLOCK)
                parts.append(part)
                budget -= len(part)
            self._on_parts(parts)
            if self.closed or budget < 0:
                return

    def close(self, linger_ms: int) -> None:
        """Stop listening to it and close it; what is unsent has `linger_ms` to go out. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        self.socket.close(linger=linger_ms)

    def _check(self) -> None:
        self._check_scheduled = False
        if self.closed:
            return
        if not self._readable():
            # The word that was eaten may have been "you may send": try, but without checking once more, or
            # a peer that stays full would keep this going for ever.
            self._checking = True
            try:
                self._on_wake()
            finally:
                self._checking = False
        if self._readable():
            self._woken()

    def _woken(self) -> None:
        if self._readable():
            self.drain()
        if not self.closed:
            self._on_wake()
            self.check_soon()

    def _readable(self) -> bool:
        return not self.closed and bool(int(self.socket.getsockopt(_EVENTS)) & _POLLIN)
