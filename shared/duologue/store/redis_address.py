"""Where a Redis or Valkey listens, from its URL, for connections that redis-py does not make."""

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

    async def connect(self, protocol: Callable[[], _P]) -> _P:
        """A connected protocol. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if self.path:
            return (await loop.create_unix_connection(protocol, self.path))[1]
        context = ssl.create_default_context() if self.tls else None
        return (await loop.create_connection(protocol, self.host, self.port, ssl=context))[1]

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
    )
