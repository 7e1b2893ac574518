"""The ways in which a client may go, each of which must give back all that its session had."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

from system.wire import Wire, append, level, session_object
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

GRACE_S = 1.0
"""How long a session waits for a client that has gone: short, so that a place that does not come back is seen."""
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "silent": [{"listen": 1}],
    "speaking": [{"speak": {"units": 4000, "text": "and on and on"}}],
    "calling": [{"tool_call": {"name": "look", "arguments": {"at": 1}}}, {"listen": 1}],
    "brief": [{"speak": {"units": 2, "text": "so be it"}}, {"listen": 1}],
}
DISTURBED = (ConnectionClosed, ConnectionError, InvalidMessage, InvalidStatus, OSError, TimeoutError, AssertionError)
"""What a client may meet while a process is killed under it. Without kills each of them is a fault."""


OPENED: ContextVar[list[Wire]] = ContextVar("OPENED")
"""The sockets of the client whose task this is: what a kill has interrupted must not hold them."""


def _kept(wire: Wire) -> Wire:
    OPENED.get([]).append(wire)
    return wire


async def _open(url: str, script: str = "silent", **query: str) -> Wire:
    return _kept(await Wire.open(url, _session(script), **query))


def _session(script: str) -> dict[str, Any]:
    return {**session_object(script=SCRIPTS[script]), "disconnect_grace_s": GRACE_S}


async def _speaking(url: str) -> Wire:
    """A session whose answer is on its way."""
    wire = await _open(url, "speaking")
    for _ in range(2):
        await wire.send(append(level(6000)))
    await wire.until("response.output_audio.delta")
    return wire


async def _calling(url: str) -> Wire:
    """A session that waits for the result of a call."""
    wire = await _open(url, "calling")
    await wire.send(append(level(6000)))
    await wire.until("response.function_call_arguments.done")
    return wire


def reset(wire: Wire) -> None:
    """A TCP reset: whatever is in the buffers of either side is lost."""
    sock: socket.socket = wire.ws.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.ws.transport.abort()


async def clean(url: str) -> None:
    """An answer, then `session.close`."""
    wire = await _open(url, "brief")
    await wire.send(append(level(6000, 160)))
    await wire.until("response.done")
    await wire.end()


async def clean_while_speaking(url: str) -> None:
    wire = await _speaking(url)
    await wire.end()


async def clean_during_a_call(url: str) -> None:
    wire = await _calling(url)
    await wire.end()


async def rst(url: str) -> None:
    wire = await _open(url)
    await wire.send(append(level(6000)))
    reset(wire)


async def rst_while_speaking(url: str) -> None:
    reset(await _speaking(url))


async def rst_during_a_call(url: str) -> None:
    reset(await _calling(url))


async def dropped(url: str) -> None:
    """FIN without a close frame, with input under way."""
    wire = await _open(url)
    await wire.send(append(level(6000, 480)))
    wire.ws.transport.write_eof()
    await wire.ws.wait_closed()


async def close_frame(url: str) -> None:
    """A close frame, which is a drop in this dialect."""
    wire = await _open(url)
    await wire.ws.close(4000, "as I like")


async def half_open(url: str) -> None:
    """It neither reads nor answers a ping any more, and its TCP connection stands: the server must give it up."""
    wire = await _speaking(url)
    sock: socket.socket = wire.ws.transport.get_extra_info("socket")
    kept = os.dup(sock.fileno())
    wire.ws.transport.pause_reading()
    try:
        await asyncio.sleep(4 * GRACE_S)
    finally:
        os.close(kept)
        wire.ws.transport.abort()


class Gap(Exception):
    """A resume was told that the journal lacks something: what was sent without it, because it did not answer, and was
    lost with its gateway. The gateway says so in its log."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id


async def resumed(url: str) -> None:
    """Dropped and taken up again, then ended."""
    wire = await _speaking(url)
    created = wire.log[0]
    reset(wire)
    again = _kept(await Wire.resume(url, created["session"]["id"], created["resume_token"], 1))
    if (await again.until("session.resumed", "session.resync_required"))["type"] == "session.resync_required":
        await again.ws.wait_closed()
        raise Gap(created["session"]["id"])
    await again.end()


async def before_the_upgrade(url: str) -> None:
    """Half a request, then nothing."""
    await _half_a_handshake(url, b"GET /v1/realtime?duplex=1 HTTP/1.1\r\nHost: x\r\nUpgrade: web")


async def before_the_answer(url: str) -> None:
    """A whole request whose answer is not waited for."""
    request = (
        b"GET /v1/realtime?duplex=1&autostart=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n"
        % base64.b64encode(os.urandom(16))
    )
    await _half_a_handshake(url, request)


async def _half_a_handshake(url: str, request: bytes) -> None:
    place = urlsplit(url)
    _, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(request)
    await writer.drain()
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await asyncio.sleep(0)


async def before_the_session(url: str) -> None:
    """Connected, and gone without a word."""
    reset(_kept(await Wire.dial(url, autostart="0")))


async def while_it_opens(url: str) -> None:
    """The first message, and gone before its answer."""
    wire = _kept(await Wire.dial(url, autostart="0"))
    await wire.send({"type": "session.update", "session": _session("silent")})
    reset(wire)


async def refused(url: str) -> None:
    """A first update that nobody can carry out."""
    wire = _kept(await Wire.dial(url, autostart="0"))
    await wire.send({"type": "session.update", "session": {"model": "no such model"}})
    with contextlib.suppress(ConnectionClosed):
        assert json.loads(await wire.ws.recv())["error"]["code"] == "model_not_found"
    await wire.ws.wait_closed()


Ending = Callable[[str], Awaitable[None]]
ENDINGS: tuple[Ending, ...] = (
    clean,
    clean_while_speaking,
    clean_during_a_call,
    rst,
    rst_while_speaking,
    rst_during_a_call,
    dropped,
    close_frame,
    half_open,
    resumed,
    before_the_upgrade,
    before_the_answer,
    before_the_session,
    while_it_opens,
    refused,
)
