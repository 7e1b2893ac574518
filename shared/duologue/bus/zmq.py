"""The bus over ZeroMQ: one ROUTER that listens, one DEALER for each peer that is dialled.

Rule 1. A dial gets a fresh socket with a fresh random identity each time: nothing of an older one can be
        mistaken for it, at either end.
Rule 2. Sends never wait. A full peer keeps its own batch (bounded by credit) and blocks nobody else.
Rule 3. Only the loop's thread touches a socket.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from duologue.bus.curve import CurveKeys, decoded, split_key, with_key
from duologue.bus.driven import Connection, Written
from duologue.bus.endpoint import Broke, LinkEndpoint
from duologue.bus.errors import BusError, KeyRefused
from duologue.bus.link import Frame, LinkHandler, Peer
from duologue.bus.machine import LinkOptions
from duologue.bus.zmq_auth import DoorLog, HandshakeWatch, ZapHandler
from duologue.bus.zmq_options import (
    ZmqOptions,
    apply_options,
    apply_router_options,
    check_address,
    clear_stale_ipc,
    ipc_inode,
    remove_ipc_file,
)
from duologue.bus.zmq_packing import pack_parts, unpack_parts
from duologue.bus.zmq_socket import LoopSocket

_log = logging.getLogger("duologue.bus")
_BROKEN: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_TURNED_AWAY: Final = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class _AcceptedConnection(Connection):
    """A peer that dialled us: its identity on the ROUTER."""

    def __init__(self, router: LoopSocket, identity: bytes) -> None:
        self._router = router
        self._identity = identity

    def write(self, parts: Sequence[Frame]) -> Written:
        router = self._router
        if router.closed:
            return Written.GONE
        try:
            router.send([self._identity, *pack_parts(parts)])
            return Written.SENT
        except zmq.Again:
            return Written.BLOCKED
        except zmq.ZMQError as error:
            return _gone(error)

    def close(self) -> None:
        """The ROUTER forgets the identity when the other end closes."""


class _DialledConnection(Connection):
    """A peer that we dialled: a DEALER of its own, and a monitor that tells when the connection breaks."""

    def __init__(
        self,
        dealer: LoopSocket,
        monitor: LoopSocket,
        linger_ms: int,
        on_close: Callable[[_DialledConnection], None],
    ) -> None:
        self.dealer = dealer
        self.monitor = monitor
        self.linger_ms = linger_ms
        self._on_close = on_close

    def write(self, parts: Sequence[Frame]) -> Written:
        if self.dealer.closed:
            return Written.GONE
        try:
            self.dealer.send(pack_parts(parts))
            return Written.SENT
        except zmq.Again:
            return Written.BLOCKED
        except zmq.ZMQError as error:
            return _gone(error)

    def close(self) -> None:
        if not self.dealer.closed:
            self.dealer.socket.disable_monitor()
            self.monitor.close(0)
            self.dealer.close(self.linger_ms)
            self._on_close(self)


def _gone(error: zmq.ZMQError) -> Written:
    if error.errno != zmq.EHOSTUNREACH:
        _log.warning("a peer is given up: sending failed with %s", error)
    return Written.GONE


class ZmqEndpoint(LinkEndpoint):
    """`bind` empty: this process only dials. `advertise`: the host that others dial, by tcp, where it is not the one
    that is bound. With CURVE every address is tcp, and `address` tells our public key as well."""

    def __init__(
        self,
        me: Peer,
        handler: LinkHandler,
        bind: str = "",
        *,
        options: LinkOptions | None = None,
        zmq_options: ZmqOptions | None = None,
        curve: CurveKeys | None = None,
        advertise: str = "",
    ) -> None:
        super().__init__(me, handler, options)
        if bind:
            check_address(bind)
            if curve is not None and not bind.startswith("tcp://"):
                raise BusError(f"bus address {bind!r}: CURVE keys are for tcp:// only")
        self._bind = bind
        self._advertise = advertise
        self._address = ""
        self._inode = 0
        self._zmq_options = zmq_options or ZmqOptions()
        self._curve = curve
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._router: LoopSocket | None = None
        self._guards: list[ZapHandler | HandshakeWatch] = []
        self._door: DoorLog | None = None
        self._dialled: set[_DialledConnection] = set()

    # -- the port --------------------------------------------------------------------------------------

    async def start(self) -> None:
        clear_stale_ipc(self._bind)
        self._context = zmq.Context()
        try:
            self._begin_listening(self._context)
        except BusError:
            self._context.destroy(linger=0)
            self._context = None
            raise
        self._begin()

    @property
    def address(self) -> str:
        address = self._address
        if self._advertise and address.startswith("tcp://"):
            address = f"tcp://{self._advertise}:{address.rpartition(':')[2]}"
        return with_key(address, self._curve.public) if self._curve is not None and address else address

    def dial(self, name: str, address: str) -> None:
        check_address(split_key(address)[0])
        super().dial(name, address)

    async def close(self) -> None:
        await self._shut(tell=True, linger_ms=self._zmq_options.linger_ms)

    async def abort(self) -> None:
        """Close without a goodbye and without lingering, as a dying process does."""
        await self._shut(tell=False, linger_ms=0)

    # -- listening -------------------------------------------------------------------------------------

    def _begin_listening(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        loop = asyncio.get_running_loop()
        self._door = DoorLog(self.stats, loop)
        if not self._bind:
            return
        router = context.socket(zmq.ROUTER)
        apply_options(router, self._zmq_options)
        apply_router_options(router)
        if self._curve is not None:
            self._guards.append(ZapHandler(context, loop, self._curve.allowed, self._door))
            self._guards.append(HandshakeWatch(router, loop, self._door))
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.CURVE_SECRETKEY, self._curve.secret)
            router.setsockopt(zmq.CURVE_PUBLICKEY, self._curve.public.encode())
        try:
            router.bind(self._bind)
        except zmq.ZMQError as error:
            self._unguard()
            router.close(linger=0)
            raise BusError(_bind_failed(self._bind, error)) from error
        self._address = str(router.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        self._inode = ipc_inode(self._address)
        self._router = LoopSocket(router, loop, self._routed, self._retry_stuck, self._stuck)

    def _unguard(self) -> None:
        for guard in self._guards:
            guard.close()
        self._guards.clear()

    def _routed(self, parts: list[bytes]) -> None:
        identity = parts.pop(0)
        self._heard_accepted(identity, unpack_parts(parts) if parts else parts, self._accepted_connection)

    def _accepted_connection(self, identity: bytes) -> Connection:
        assert self._router is not None
        return _AcceptedConnection(self._router, identity)

    # -- dialling --------------------------------------------------------------------------------------

    def _connect(self, address: str, heard: Callable[[Sequence[bytes]], None], broke: Broke) -> Connection:
        place, server_key = self._vetted(address)
        socket, watch = self._dealer(place, server_key)
        dealer = LoopSocket(
            socket, self.loop, lambda frames: heard(unpack_parts(frames)), self._retry_stuck, self._stuck
        )

        def monitored(parts: list[bytes]) -> None:
            event = parse_monitor_message(parts)["event"]
            if event & _TURNED_AWAY:  # ZeroMQ tries no more after that
                self._refused("refused_there", f"{place} does not allow our key, or is not who its address says")
                broke(for_good=True)
            elif event & _BROKEN:
                dealer.drain()  # what arrived before the end is still good
                broke()

        monitor = LoopSocket(watch, self.loop, monitored)
        connection = _DialledConnection(dealer, monitor, self._zmq_options.linger_ms, self._dialled.discard)
        self._dialled.add(connection)
        return connection

    def _vetted(self, address: str) -> tuple[str, str]:
        """Where to connect to and the key to expect there (empty: without keys). Raises `KeyRefused`."""
        place, public = split_key(address)
        if self._curve is None:
            if public:
                raise self._refused("no_keys", f"{place} wants CURVE keys: set [bus] curve_secret_file")
        elif not public:
            raise self._refused("no_keys", f"{place} tells no CURVE key, and we have one: only keys are spoken to")
        elif (key := decoded(public)) is None or key not in self._curve.allowed:
            raise self._refused("unlisted_peer", f"the key of {place} is not allowed: [bus] curve_allowed_file")
        return place, public

    def _refused(self, reason: str, what: str) -> KeyRefused:
        assert self._door is not None
        self._door.refuse(reason, what)
        return KeyRefused(what)

    def _dealer(self, address: str, server_key: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A connected DEALER and its monitor."""
        assert self._context is not None
        opened: list[zmq.Socket[bytes]] = []
        try:
            socket = self._context.socket(zmq.DEALER)
            opened.append(socket)
            apply_options(socket, self._zmq_options)
            # Never a leading zero byte: those identities are ZeroMQ's own.
            socket.setsockopt(zmq.IDENTITY, b"d" + secrets.token_bytes(15))
            if self._curve is not None:
                socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
                socket.setsockopt(zmq.CURVE_SECRETKEY, self._curve.secret)
                socket.setsockopt(zmq.CURVE_PUBLICKEY, self._curve.public.encode())
            watch = socket.get_monitor_socket(_BROKEN | _TURNED_AWAY)
            opened.append(watch)
            socket.connect(address)
        except zmq.ZMQError as error:
            for each in opened:  # one left open would hold the context's end for ever
                each.close(linger=0)
            raise BusError(f"bus address {address!r} cannot be dialled: {error.strerror}") from error
        return socket, watch

    # -- the end ---------------------------------------------------------------------------------------

    async def _shut(self, *, tell: bool, linger_ms: int) -> None:
        context, self._context = self._context, None
        if context is None:
            return
        loop = self.loop
        for connection in self._dialled:
            connection.linger_ms = linger_ms
        self._finish(tell=tell)
        self._unguard()
        if self._router is not None:
            self._router.close(linger_ms)
        # Ends when everything is sent or has lingered long enough; the sockets are no longer ours.
        await loop.run_in_executor(None, context.term)
        remove_ipc_file(self._address, self._inode)


def _bind_failed(address: str, error: zmq.ZMQError) -> str:
    if error.errno == zmq.EADDRINUSE:
        return f"bus address {address!r} is in use by another process"
    if error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
        return f"bus address {address!r}: this machine has no such interface"
    return f"bus address {address!r} cannot be bound: {error.strerror}"
