"""An endpoint as the settings of the system want it: one reading of `[bus]` for gateways, shards and workers.

Rule 1. Who listens by ipc has a file of its own for each life: what an older one left behind, or still holds,
        cannot be mistaken for it.
Rule 2. On an address that others can reach nobody listens without keys, unless told to.
Rule 3. Settings belong to another room; here is only what is read of them.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from pathlib import Path
from typing import Protocol

from duologue.bus.curve import CurveKeys, read_secret
from duologue.bus.errors import BusError
from duologue.bus.link import LinkHandler, Peer
from duologue.bus.machine import LinkOptions
from duologue.bus.zmq import ZmqEndpoint
from duologue.bus.zmq_options import ZmqOptions


class BusConfig(Protocol):
    """What is read of `runtime.settings.BusSettings`."""

    @property
    def host(self) -> str: ...
    @property
    def advertise(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def socket_dir(self) -> str: ...
    @property
    def window_bytes(self) -> int: ...
    @property
    def heartbeat_s(self) -> float: ...
    @property
    def expiry_s(self) -> float: ...
    @property
    def stall_s(self) -> float: ...
    @property
    def linger_s(self) -> float: ...
    @property
    def high_water(self) -> int: ...
    @property
    def curve_secret_key(self) -> str: ...
    @property
    def curve_secret_file(self) -> str: ...
    @property
    def curve_allowed_keys(self) -> tuple[str, ...]: ...
    @property
    def curve_allowed_file(self) -> str: ...
    @property
    def insecure(self) -> bool: ...


def listening_endpoint(bus: BusConfig, me: Peer, handler: LinkHandler) -> ZmqEndpoint:
    """One that others dial. Raises `BusError` for keys that are missing or none, `OSError` without the folder of
    sockets."""
    return _endpoint(bus, me, handler, bind_address(bus, me))


def dialling_endpoint(bus: BusConfig, me: Peer, handler: LinkHandler) -> ZmqEndpoint:
    """One that only dials. Raises `BusError` for keys that are missing or none."""
    return _endpoint(bus, me, handler, "")


def bind_address(bus: BusConfig, me: Peer) -> str:
    """Where this life of a process listens; the folder of ipc sockets is made."""
    if bus.host:
        return f"tcp://{bus.host}:{bus.port or '*'}"
    folder = Path(bus.socket_dir or Path(tempfile.gettempdir()) / f"duologue-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return f"ipc://{folder / me.name}-{me.incarnation[:6]}.sock"


def keys_of(bus: BusConfig) -> CurveKeys | None:
    """The keys of this process; None: it speaks without, by ipc, on this machine, or because it was told to.
    Raises `BusError`."""
    secret = bus.curve_secret_key
    if bus.curve_secret_file:
        secret = read_secret(Path(bus.curve_secret_file))
    if secret:
        allowed_file = Path(bus.curve_allowed_file) if bus.curve_allowed_file else None
        return CurveKeys(secret, bus.curve_allowed_keys, allowed_file)
    if bus.host and not bus.insecure and not is_loopback(bus.host):
        raise BusError(
            f"[bus] host {bus.host}: refusing to speak by tcp without keys (bus_keys_missing); make a pair with "
            "`duologue keys` and set [bus] curve_secret_file, or [bus] insecure = true on a network that you trust"
        )
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _endpoint(bus: BusConfig, me: Peer, handler: LinkHandler, bind: str) -> ZmqEndpoint:
    return ZmqEndpoint(
        me,
        handler,
        bind,
        options=LinkOptions(
            window_bytes=bus.window_bytes,
            heartbeat_s=bus.heartbeat_s,
            expiry_s=bus.expiry_s,
            stall_s=bus.stall_s,
        ),
        zmq_options=ZmqOptions(linger_ms=round(bus.linger_s * 1000), high_water=bus.high_water),
        curve=keys_of(bus),
        advertise=bus.advertise,
    )
