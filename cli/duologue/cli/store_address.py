"""A store by its address, as a person gave it."""

from __future__ import annotations

from duologue.cli.errors import UserError
from duologue.store.redis import RedisStore


def store_at(url: str, journal_url: str = "", *, timeout_s: float = 1.0) -> RedisStore:
    """Not connected yet. Raises UserError for what is no address."""
    try:
        return RedisStore(url, journal_url, timeout_s=timeout_s)
    except ValueError as error:
        raise UserError(f"{shown(url)!r} is no address of a Redis: {error}") from None


def shown(url: str) -> str:
    """The address without its user and password."""
    return url.rpartition("@")[2]
