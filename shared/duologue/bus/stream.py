"""One unix stream socket as the way to a peer on this machine.

A hop over ZeroMQ wakes two threads besides the two loops, and copies what it carries twice as often; between
processes of one machine both can be spared. On the wire: how many parts, how long each of them is, the parts.

Rule 1. A multipart message is taken whole or not at all. What the kernel does not take of one is kept, and until
        that has left nothing more is taken.
Rule 2. Nothing that a peer sends raises: what cannot be a message ends the connection.
Rule 3. What arrived before the end of a connection is still heard; only then is the end told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket as sockets
import struct
from collections.abc import Callable, Sequence
from typing import Final

from duologue.bus.driven import Connection, Written
from duologue.bus.link import Frame
from duologue.bus.zmq_options import MAX_FRAME_BYTES

_log = logging.getLogger("duologue.bus")

READ_BYTES: Final = 256 * 1024
"""The most that is taken from a connection in one turn, unless one message is larger."""
MAX_PARTS: Final = 65_536
_MAX_BUFFERS: Final = 512
"""Of one call to the kernel, which takes 1024."""
_WORD: Final = struct.Struct(">I")
_USUAL: Final = 3
"""Parts of most messages: header, messages, small frames."""
_USUAL_HEAD: Final = struct.Struct(">IIII")
_BACKLOG: Final = 128
_ACCEPTS: Final = 64
_EXHAUSTED_S: Final = 0.1
"""Without a free file descriptor it is tried again after so long."""


def scratch() -> memoryview:
    """Where the connections of one loop read to: it is empty again when a reader returns."""
    return memoryview(bytearray(READ_BYTES))


def connected(path: str) -> sockets.socket | None:
    """A connection to whoever listens at `path`; None: nobody does. A unix socket need not be waited for."""
    sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM | sockets.SOCK_NONBLOCK)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        return None
    return sock


class StreamConnection(Connection):
    """See the module. `heard` gets each message, an empty one for what is none; `ended` is called once, unless it was
    closed from here; `on_room` when the other end takes more again."""

    def __init__(
        self,
        sock: sockets.socket,
        loop: asyncio.AbstractEventLoop,
        space: memoryview,
        heard: Callable[[list[bytes]], None],
        ended: Callable[[], None],
        on_room: Callable[[], None],
        gone: Callable[[StreamConnection], None],
    ) -> None:
        """`space`: see `scratch`. `gone` is called when nothing is left of it, lingering included."""
        self._sock = sock
        self._loop = loop
        self._space = space
        self._heard = heard
        self._ended = ended
        self._on_room = on_room
        self._gone = gone
        self.linger_s = 0.0
        self.closed = False
        self._rest = memoryview(b"")
        """What the kernel has not taken of the last message."""
        self._waits = False
        """Told when it takes more."""
        self._kept: bytearray | None = None
        """The message that has come in part, as long as it will be, and how much of it there is."""
        self._have = 0
        self._timer: asyncio.TimerHandle | None = None
        self._fd = sock.fileno()
        loop.add_reader(self._fd, self._readable)

    # -- out -------------------------------------------------------------------------------------------

    def write(self, parts: Sequence[Frame]) -> Written:
        if self.closed:
            return Written.GONE
        if self._waits:
            return Written.BLOCKED
        buffers = [message_head(parts), *parts]
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        try:
            sent = self._sock.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            self._wait()
            return Written.BLOCKED
        except OSError:
            # The other end is gone. The reader is about to find out, behind what was said before that.
            return Written.BLOCKED
        for buffer in buffers:
            sent -= buffer.nbytes if type(buffer) is memoryview else len(buffer)
        if sent:
            self._rest = memoryview(b"".join(buffers))[sent:]
            self._wait()
        return Written.SENT

    def _wait(self) -> None:
        self._waits = True
        self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[self._sock.send(self._rest) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._rest = memoryview(b"")  # nobody is there to hear it
        self._waits = False
        self._loop.remove_writer(self._fd)
        if self.closed:
            self._let_go()
        else:
            self._on_room()

    # -- in --------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        kept = self._kept
        space = self._space if kept is None else memoryview(kept)
        try:
            got = self._sock.recv_into(space[self._have :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            got = 0
        if not got:
            return self._end()
        end = self._have + got
        at = 0
        while True:
            parts, whole = read_message(space, at, end)
            if not parts:
                break
            at += whole
            self._heard(parts)
            if self.closed:
                return None
        if whole < 0:
            self._heard([])
            return self._end()
        if at == end:
            self._kept, self._have = None, 0
        elif kept is not None and at == 0 and whole <= len(kept):
            self._have = end
        else:
            self._kept = bytearray(max(whole, end - at))
            self._have = end - at
            self._kept[: self._have] = space[at:end]
        return None

    # -- the end ---------------------------------------------------------------------------------------

    def _end(self) -> None:
        if not self.closed:
            self._rest = memoryview(b"")
            self.close()
            self._ended()

    def close(self) -> None:
        """Hear nothing more; what is unsent has `linger_s` to leave."""
        if self.closed:
            return
        self.closed = True
        self._kept = None
        self._loop.remove_reader(self._fd)
        if self._rest and self.linger_s > 0:
            self._timer = self._loop.call_later(self.linger_s, self._let_go)
        else:
            self._let_go()

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waits:
            self._waits = False
            self._loop.remove_writer(self._fd)
        self._sock.close()
        self._gone(self)


class StreamListener:
    """Takes connections at `path`, a file that it makes. Raises OSError."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop, accepted: Callable[[sockets.socket], None]) -> None:
        self._path = path
        self._loop = loop
        self._accepted = accepted
        self._timer: asyncio.TimerHandle | None = None
        self._sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM | sockets.SOCK_NONBLOCK)
        try:
            self._sock.bind(path)
            self._sock.listen(_BACKLOG)
            self._inode = os.stat(path).st_ino
        except OSError:
            self._sock.close()
            raise
        self._listen()

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("no peer can be let in at %s for now: %s", self._path, error.strerror)
                self._loop.remove_reader(self._sock.fileno())
                self._timer = self._loop.call_later(_EXHAUSTED_S, self._listen)
                return
            sock.setblocking(False)
            self._accepted(sock)

    def close(self) -> None:
        """Idempotent. The file is removed, if it is still ours."""
        if self._sock.fileno() < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        else:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)


def message_head(parts: Sequence[Frame]) -> bytes:
    """How many parts, and how long each is: what goes before them."""
    if len(parts) == _USUAL and type(parts[2]) is bytes:
        return _USUAL_HEAD.pack(_USUAL, len(parts[0]), len(parts[1]), len(parts[2]))
    sizes = [part.nbytes if type(part) is memoryview else len(part) for part in parts]
    return struct.pack(f">{1 + len(sizes)}I", len(sizes), *sizes)


def read_message(data: memoryview, at: int, end: int) -> tuple[list[bytes], int]:
    """The message that begins at `at`, and its length with its head. While not all of it is there: no parts, and the
    length as far as that is known. Without parts and -1: it is no message."""
    if end - at < _WORD.size:
        return [], _WORD.size
    (count,) = _WORD.unpack_from(data, at)
    if not 0 < count <= MAX_PARTS:
        return [], -1
    begin = at + _WORD.size * (1 + count)
    if end < begin:
        return [], begin - at
    if count == _USUAL:
        sizes: tuple[int, ...] = _USUAL_HEAD.unpack_from(data, at)[1:]
    else:
        sizes = struct.unpack_from(f">{count}I", data, at + _WORD.size)
    whole = begin - at + sum(sizes)
    if whole > MAX_FRAME_BYTES:
        return [], -1
    if end - at < whole:
        return [], whole
    parts: list[bytes] = []
    for size in sizes:
        parts.append(bytes(data[begin : begin + size]))
        begin += size
    return parts, whole
