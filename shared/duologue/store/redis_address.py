"""Where a Redis or Valkey listens, from its URL, for connections that redis-py does not make.

What is said of TLS in the query is said in redis-py's words, so that one URL serves both: `ssl_ca_certs`,
`ssl_certfile`, `ssl_keyfile` (PEM files), `ssl_cert_reqs` (none, required), `ssl_check_hostname`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

_P = TypeVar("_P", bound=asyncio.Protocol)


class RedisAddress(msgspec.Struct, frozen=True):
    """A parsed URL. `path` is set for a unix socket, `host` otherwise."""

    host: str = ""
    port: int = 6379
    path: str = ""
    username: str = ""
    password: str = ""
    database: int = 0
    tls: bool = False
    ca_certs: str = ""
    certfile: str = ""
    keyfile: str = ""
    verify: bool = True
    check_hostname: bool = True

    async def connect(self, protocol: Callable[[], _P]) -> _P:
        """A connected protocol. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if self.path:
            return (await loop.create_unix_connection(protocol, self.path))[1]
        context = self._tls_context() if self.tls else None
        return (await loop.create_connection(protocol, self.host, self.port, ssl=context))[1]

    def _tls_context(self) -> ssl.SSLContext:
        """Raises `OSError` (ssl.SSLError) for files that are not there or no certificates."""
        context = ssl.create_default_context(cafile=self.ca_certs or None)
        if self.certfile:
            context.load_cert_chain(self.certfile, self.keyfile or None)
        context.check_hostname = self.check_hostname and self.verify
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        return context

    def greeting(self) -> tuple[tuple[str | int, ...], ...]:
        """The commands that come before any other on a new connection."""
        commands: list[tuple[str | int, ...]] = []
        if self.password:
            who = (self.username,) if self.username else ()
            commands.append(("AUTH", *who, self.password))
        if self.database:
            commands.append(("SELECT", self.database))
        return tuple(commands)


def parse_address(url: str) -> RedisAddress:
    """Raises `ValueError` that names what is wrong, without the password."""
    parts = urlsplit(url)
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    username, password = query.get("username", username), query.get("password", password)
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("store url: unix:// needs the path of a socket")
        database = query.get("db", "0")
    elif parts.scheme in ("redis", "rediss"):
        if not parts.hostname:
            raise ValueError(f"store url: {parts.scheme}:// needs a host")
        database = query.get("db", parts.path.strip("/") or "0")
    else:
        raise ValueError(f"store url: {parts.scheme or 'no scheme'} is not redis, rediss or unix")
    if not database.isdigit():
        raise ValueError(f"store url: {database!r} is not a database number")
    if parts.scheme == "unix":
        return RedisAddress(path=unquote(parts.path), username=username, password=password, database=int(database))
    return RedisAddress(
        host=parts.hostname or "",
        port=parts.port or 6379,
        username=username,
        password=password,
        database=int(database),
        tls=parts.scheme == "rediss",
        ca_certs=query.get("ssl_ca_certs", ""),
        certfile=query.get("ssl_certfile", ""),
        keyfile=query.get("ssl_keyfile", ""),
        verify=query.get("ssl_cert_reqs", "required") != "none",
        check_hostname=query.get("ssl_check_hostname", "true").lower() not in ("false", "0", "no", "off"),
    )
