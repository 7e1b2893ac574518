"""One client's WebSocket: uvicorn's sans-I/O protocol plus what this service promises.

Rule 1. Frames go to the transport at once and in order, from callbacks: no task and no await per frame.
Rule 2. After acceptance every refusal is an `error` event, then a close frame, then time for the client to
        read both: what it still sends is read and thrown away, so that the kernel sends no reset.
Rule 3. A text frame goes to `sink` at once, without a task switch, as long as nothing waits before it; what the
        sink cannot finish is queued, and nothing more is read until it is worked off.
Rule 4. What is large enough to be media is kept for a few milliseconds (`gathering`), at most `KEPT_BYTES`
        of it; what is small is taken in at once, behind what was kept.
Rule 5. Liveness is judged by any byte from the peer, not by pongs alone; a socket that we ourselves do not
        read (backpressure) is not judged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import PayloadTooBig
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.speedups import apply_mask

from duologue.gateway.errors import local_error
from duologue.gateway.gathering import Gathering

ROOM_BYTES: Final = 64 * 1024
"""While less than this is buffered towards the client, the next batch of events may be taken."""
MEDIA_BYTES: Final = 1000
"""What arrives in pieces smaller than this is control: 10 ms of G.711 is less, and does not wait either."""
KEPT_BYTES: Final = 256 * 1024
LINGER_S: Final = 5.0
"""How long a client may take to answer a close frame before its TCP connection is dropped."""

REST: Final = "duologue.rest"
"""Type of the queued message for what a sink could not finish; the rest is under "rest"."""
EXTENSION: Final = "duologue.wire"
"""Where an ASGI scope carries the `Wire` (in `scope["extensions"]`)."""

_TEXT_FIN: Final = 0x81
_MASKED: Final = 0x80
_SHORT: Final = struct.Struct("!BB")
_MEDIUM: Final = struct.Struct("!BBH")
_LONG: Final = struct.Struct("!BBQ")


class Wire(Protocol):
    """What the rest of the gateway needs of a socket."""

    on_room: Callable[[], None] | None
    """Called when the buffer towards the client has drained under its limit, and when the socket is gone."""
    sink: Callable[[str], object | None] | None
    """Takes text frames; answers what is left to do of one, if anything. None: all frames are queued."""
    gathering: Gathering | None
    """Where media may wait for that of other sockets. None: everything is taken in at once."""

    def write(self, *payloads: bytes) -> None:
        """Queue these text frames; without effect once the socket is closing."""
        ...

    def has_room(self) -> bool:
        """Whether the client keeps up: under `ROOM_BYTES` are buffered."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether frames still reach the client."""
        ...

    @property
    def clean(self) -> bool:
        """The client itself has closed, with 1000 or without a code."""
        ...

    @property
    def close_code(self) -> int:
        """With which code the socket was closed, by whoever; 1006: with none."""
        ...

    def finish(self, code: int, reason: str = "", linger_s: float = LINGER_S) -> None:
        """Send a close frame and drop the connection when it is answered, or after `linger_s`."""
        ...


def text_frame(payload: bytes) -> bytes:
    """One unfragmented, unmasked text frame (RFC 6455 section 5.2)."""
    size = len(payload)
    if size < 126:
        return _SHORT.pack(_TEXT_FIN, size) + payload
    if size < 65536:
        return _MEDIUM.pack(_TEXT_FIN, 126, size) + payload
    return _LONG.pack(_TEXT_FIN, 127, size) + payload


class RealtimeSocket(WebSocketsSansIOProtocol):
    """The protocol class that uvicorn runs for each connection; it is a `Wire`."""

    on_room: Callable[[], None] | None = None
    sink: Callable[[str], object | None] | None = None
    gathering: Gathering | None = None
    _heard = False
    _lingering = False
    _full = False
    _kept_bytes = 0

    # -- towards the client ---------------------------------------------------------------------------

    def write(self, *payloads: bytes) -> None:
        if self.is_open:
            self.transport.write(b"".join([text_frame(payload) for payload in payloads]))

    def has_room(self) -> bool:
        return not self._full and self.transport.get_write_buffer_size() < ROOM_BYTES

    @property
    def is_open(self) -> bool:
        return (
            self.handshake_complete
            and not self.close_sent
            and not self.disconnected
            and self.conn.state is OPEN
            and not self.transport.is_closing()
        )

    @property
    def clean(self) -> bool:
        closed = self.conn.close_rcvd
        return not self.close_sent and closed is not None and closed.code in (1000, 1005)

    @property
    def close_code(self) -> int:
        closed = self.conn.close_sent or self.conn.close_rcvd
        return 1006 if closed is None else int(closed.code)

    def finish(self, code: int, reason: str = "", linger_s: float = LINGER_S) -> None:
        if not self.is_open:
            return
        self.conn.send_close(code, _short(reason))
        self.transport.write(b"".join(self.conn.data_to_send()))
        self._leave(linger_s, code, reason)

    def _leave(self, linger_s: float, code: int, reason: str) -> None:
        """A close frame is out: read on until it is answered, then let go of the connection."""
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._read_on()
        self._drop_after(linger_s)

    def _read_on(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def _drop_after(self, linger_s: float) -> None:
        if self.close_timer is not None:
            self.close_timer.cancel()
        # Not `close`: a client that reads nothing would keep the buffer, and with it the socket, for ever.
        self.close_timer = self.loop.call_later(linger_s, self.transport.abort)

    # -- from the client ------------------------------------------------------------------------------

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        self._kept: list[bytes] = []
        if self.response.status_code == 101:
            self.transport.set_write_buffer_limits(high=ROOM_BYTES, low=ROOM_BYTES // 2)
            extensions = self.scope.get("extensions")
            assert extensions is not None
            extensions[EXTENSION] = self  # type: ignore[assignment]

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # refused in HTTP: else uvicorn reports an application that forgot to

    def data_received(self, data: bytes) -> None:
        self._heard = True
        gathering = self.gathering
        if gathering is None:
            return self._take_in(data)
        if len(data) < MEDIA_BYTES or self._kept_bytes > KEPT_BYTES:
            self.work_off()
            return self._take_in(data)
        self._kept.append(data)
        self._kept_bytes += len(data)
        return gathering.add(self)

    def work_off(self) -> None:
        """Take in what was kept."""
        if self._kept_bytes:
            kept, self._kept, self._kept_bytes = self._kept, [], 0
            for data in kept:
                self._take_in(data)

    def give_up(self) -> None:
        self.transport.abort()

    def _take_in(self, data: bytes) -> None:
        if self._lingering:
            return
        if self.sink is not None and (payload := self._lone_frame(data)) is not None:
            self._text(payload)
        else:
            super().data_received(data)

    def _lone_frame(self, data: bytes) -> bytes | None:
        """The payload, if `data` is one whole text frame and nothing of an earlier one waits: the usual case."""
        conn = self.conn
        if len(data) < 6 or data[0] != _TEXT_FIN or conn.reader.buffer or conn.current_size is not None:
            return None
        size, start = data[1] - _MASKED, 2
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(data[2:10], "big"), 10
        limit = self.config.ws_max_size
        if size < 0 or len(data) != start + 4 + size or size > limit or conn.state is not OPEN:
            return None
        return apply_mask(data[start + 4 :], data[start : start + 4])

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text":
            payload = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
            self.frames = []
            self._text(payload)
        else:
            super().send_receive_event_to_app()

    def _text(self, payload: bytes) -> None:
        if self.close_sent:
            return
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self.conn.fail(1007, "invalid UTF-8")
            self._failed(1007, "invalid UTF-8")
            return
        if self.sink is not None and self.queue.empty():
            rest = self.sink(text)
            if rest is None:
                return
            message: Any = {"type": REST, "rest": rest}
            self.queue.put_nowait(message)
        else:
            self.queue.put_nowait({"type": "websocket.receive", "text": text})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_parser_exception(self) -> None:
        sent = self.conn.close_sent
        if isinstance(self.conn.parser_exc, PayloadTooBig) and self.handshake_complete and not self.close_sent:
            error = local_error("event_too_large", f"a frame may have at most {self.config.ws_max_size} bytes")
            self.transport.write(text_frame(error))
        self._failed(sent.code if sent else 1002, sent.reason if sent else "")

    def _failed(self, code: int, reason: str) -> None:
        """The protocol machine has given up and queued its close frame."""
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():  # the client, which waits for our end of the connection, need not wait
            self.transport.write_eof()
        self._lingering = True
        self._leave(LINGER_S, code, reason)

    # -- buffer and liveness --------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._full = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        super().resume_writing()
        if self.on_room is not None:
            self.on_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self.work_off()
        super().connection_lost(exc)
        self._full = False
        if self.on_room is not None:
            self.on_room()

    def send_keepalive_ping(self) -> None:
        self._heard = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        if self._heard or self.read_paused:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()


def _short(reason: str) -> str:
    """At most 123 bytes: a close frame holds no more."""
    return reason.encode()[:123].decode(errors="ignore")
