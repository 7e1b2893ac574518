"""One ZeroMQ socket served by an event loop through its file descriptor.

ZeroMQ's FD is edge-triggered: it speaks once, and any call on the socket may eat the word. So EVENTS is
read again after every message that was received and after every one that was sent; a drain is bounded per
turn and goes on in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Sized
from typing import Any, Final

import zmq

from duologue.bus.link import Frame
from duologue.bus.zmq_events import option_reader

DRAIN_MESSAGES: Final = 64
DRAIN_BYTES: Final = 4 * 1024 * 1024

NOBLOCK: Final = int(zmq.NOBLOCK)
MORE: Final = int(zmq.SNDMORE | zmq.NOBLOCK)
_POLLIN: Final = int(zmq.POLLIN)


class LoopSocket:
    """Owns `socket`. `on_parts` gets each multipart message. `on_wake` is called whenever a peer may take more
    again, but only while something is `stuck`."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        loop: asyncio.AbstractEventLoop,
        on_parts: Callable[[list[bytes]], None],
        on_wake: Callable[[], None] | None = None,
        stuck: Sized = (),
    ) -> None:
        self.socket = socket
        self.closed = False
        self._loop = loop
        self._on_parts = on_parts
        self._on_wake = on_wake
        self._stuck = stuck
        self._fd = int(socket.getsockopt(zmq.FD))
        # The wrapper's own `send` handles keywords, which costs more than the call: these are the methods beneath.
        beneath: Any = super(zmq.Socket, socket)
        self._receive: Callable[[int], bytes] = beneath.recv
        self._send: Callable[[Frame, int], object] = beneath.send
        self._events = option_reader(socket, int(zmq.EVENTS))
        self._more = option_reader(socket, int(zmq.RCVMORE))
        self._check_scheduled = False
        self._checking = False
        loop.add_reader(self._fd, self._woken)
        self.check_soon()

    def send(self, parts: Sequence[Frame]) -> None:
        """All parts as one message. Raises `zmq.ZMQError`; ZeroMQ refuses at the first part or takes the whole."""
        send = self._send
        try:
            for part in parts[:-1]:
                send(part, MORE)
            send(parts[-1], NOBLOCK)
        except zmq.ZMQError:
            self.check_soon()
            raise
        if self._stuck or self._events() & _POLLIN:
            self.check_soon()

    def check_soon(self) -> None:
        """Look at EVENTS in the next turn."""
        if not self._check_scheduled and not self._checking and not self.closed:
            self._check_scheduled = True
            self._loop.call_soon(self._check)

    def drain(self) -> None:
        """Hand over what is there, up to the bound of one turn."""
        if self.closed:
            return
        budget = DRAIN_BYTES
        receive, events_now, more = self._receive, self._events, self._more
        events = _POLLIN  # more often than not: whoever calls was told so
        for _ in range(DRAIN_MESSAGES):
            if not events & _POLLIN:
                return
            try:
                part = receive(NOBLOCK)
            except zmq.Again:
                return
            parts = [part]
            budget -= len(part)
            # A message is there with all its parts or not at all: no event means no further part either.
            while (events := events_now()) & _POLLIN and more():
                part = receive(NOBLOCK)
                parts.append(part)
                budget -= len(part)
            self._on_parts(parts)
            if self.closed:
                return
            if budget < 0:
                break
        self.check_soon()

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
        if self._events() & _POLLIN:
            self._woken()
            return
        # The word that was eaten may have been "you may send": try, but without checking once more, or a peer
        # that stays full would keep this going for ever.
        self._checking = True
        try:
            self._wake()
        finally:
            self._checking = False
        if not self.closed and self._events() & _POLLIN:
            self._woken()

    def _woken(self) -> None:
        self.drain()
        self._wake()

    def _wake(self) -> None:
        if self._stuck and not self.closed and self._on_wake is not None:
            self._on_wake()
            self.check_soon()
