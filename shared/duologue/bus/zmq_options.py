"""Every ZeroMQ option that the bus relies on, set on purpose, and the addresses it can use.

| option | why |
|---|---|
| ROUTER_MANDATORY | a send to nobody says so instead of vanishing |
| ROUTER_HANDOVER | a peer that comes back with its old identity is not refused |
| SNDTIMEO, NOBLOCK | a full peer that goes away can never hold the loop |
| IMMEDIATE | nothing is queued for a connection that is not there |
| HEARTBEAT_*, CONNECT_TIMEOUT, HANDSHAKE_IVL | a connection whose other end vanished without a word ends |
| RECONNECT_IVL, _MAX | a listener that is late is found soon, a dead one does not cost |
| LINGER | closing ends |
| SNDHWM, RCVHWM | a bound of last resort; the flow control is credit |
| MAXMSGSIZE | one peer cannot make us allocate without end |
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import stat
from typing import Final

import msgspec
import zmq

from duologue.bus.errors import BusError

MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
_IPC_PATH_MAX: Final = 107


class ZmqOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times in ms, marks in multipart messages."""

    send_timeout_ms: int = 1000
    heartbeat_ms: int = 1000
    heartbeat_timeout_ms: int = 3000
    connect_timeout_ms: int = 2000
    reconnect_ms: int = 50
    reconnect_max_ms: int = 1000
    linger_ms: int = 1000
    high_water: int = 1000


def apply_options(socket: zmq.Socket[bytes], options: ZmqOptions) -> None:
    """What every socket of the bus gets, before it binds or connects."""
    values = {
        zmq.SNDTIMEO: options.send_timeout_ms,
        zmq.IMMEDIATE: 1,
        zmq.HEARTBEAT_IVL: options.heartbeat_ms,
        zmq.HEARTBEAT_TIMEOUT: options.heartbeat_timeout_ms,
        zmq.HEARTBEAT_TTL: options.heartbeat_timeout_ms,
        zmq.CONNECT_TIMEOUT: options.connect_timeout_ms,
        zmq.HANDSHAKE_IVL: options.connect_timeout_ms,
        zmq.RECONNECT_IVL: options.reconnect_ms,
        zmq.RECONNECT_IVL_MAX: options.reconnect_max_ms,
        zmq.LINGER: options.linger_ms,
        zmq.SNDHWM: options.high_water,
        zmq.RCVHWM: options.high_water,
        zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
    }
    for option, value in values.items():
        socket.setsockopt(option, value)


def apply_router_options(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)


def check_address(address: str) -> None:
    """Raises `BusError` for what can never be bound or dialled."""
    scheme, _, rest = address.partition("://")
    if scheme not in ("ipc", "tcp") or not rest:
        raise BusError(f"bus address {address!r}: use ipc://PATH or tcp://HOST:PORT")
    if scheme == "ipc":
        if len(rest.encode()) > _IPC_PATH_MAX:
            raise BusError(f"bus address {address!r}: the path is longer than {_IPC_PATH_MAX} bytes; use a shorter one")
    else:
        host, colon, port = rest.rpartition(":")
        if not host or not colon or not (port == "*" or (port.isdigit() and int(port) < 65536)):
            raise BusError(f"bus address {address!r}: use tcp://HOST:PORT")


def clear_stale_ipc(address: str) -> None:
    """Remove the socket file of a process that is gone. Raises `BusError` if one is alive behind it.

    ZeroMQ itself takes over a live process's path without a word, so the question is asked here.
    """
    if not address.startswith("ipc://"):
        return
    path = address.removeprefix("ipc://")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise BusError(f"bus address {address!r}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise BusError(f"bus address {address!r}: the path is there and is no socket; remove it or use another")
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM | sockets.SOCK_NONBLOCK) as probe:
        refused = probe.connect_ex(path)
    if refused == 0:
        raise BusError(f"bus address {address!r} is in use by another process")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def ipc_inode(address: str) -> int:
    """Which file stands behind an ipc address (0: none, or no ipc address)."""
    if not address.startswith("ipc://"):
        return 0
    try:
        return os.stat(address.removeprefix("ipc://")).st_ino
    except FileNotFoundError:
        return 0


def remove_ipc_file(address: str, inode: int) -> None:
    """Remove our socket file, which ZeroMQ leaves; not one that somebody else has put there since."""
    if inode and ipc_inode(address) == inode:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address.removeprefix("ipc://"))
