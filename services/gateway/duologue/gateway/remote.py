"""Where a client connects from, as far as the proxies before us are to be believed. SANS-I/O.

Rule 1. `X-Forwarded-For` counts only when the connection comes from a trusted proxy; it is read from its end, and the
        first address that is no trusted proxy is the client. What stands before that was written by the client itself.
Rule 2. It is told (audit), never decided by: admission knows keys and origins.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Final

FORWARDED: Final = b"x-forwarded-for"
MAX_HOPS: Final = 16
"""Proxies in a row; what is before them is not looked at."""


class TrustedProxies:
    """`networks`: addresses, or networks as `10.0.0.0/8`. Raises ValueError for what is neither."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(ip_network(network, strict=False) for network in networks)

    def client_of(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The client's address. `peer`: of the connection; empty if it has none. Header names in lower case."""
        if not self._trusts(peer):
            return peer
        told = b",".join(value for name, value in headers if name == FORWARDED).decode("latin-1")
        found = peer
        for hop in reversed(told.split(",")[-MAX_HOPS:]):
            address = _address(hop.strip())
            if not address:
                break
            found = address
            if not self._trusts(address):
                break
        return found

    def _trusts(self, text: str) -> bool:
        address = _address(text)
        return bool(address) and any(ip_address(address) in network for network in self._networks)


def _address(text: str) -> str:
    """The plain address of `1.2.3.4`, `1.2.3.4:567`, `::1` or `[::1]:567`; empty: it is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return ""
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
