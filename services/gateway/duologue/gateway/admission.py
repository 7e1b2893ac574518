"""Who may connect: judged before the WebSocket is accepted, answered in plain HTTP. SANS-I/O.

Rule 1. Order: key, Origin, drain, rate, place. Every alias and every resume passes the same checks; a client that
        may be here to resume takes no new place, so none is asked for.
Rule 2. Keys are compared as digests; nothing that is kept or printed reveals one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from duologue.gateway.handshake import SECRET_PREFIX, Offer

ANONYMOUS: Final = "anonymous"
STORE_FULL: Final = "the store is nearly full: no new session is let in"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Place(msgspec.Struct, frozen=True):
    """What there is room for, as the gateway knows it now."""

    draining: bool = False
    waiting: int = 0
    free: bool = True
    """Some shard takes another session."""
    model_free: bool = True
    """Some shard takes another session of the model that the query names (True if it names none)."""
    of_key: int = 0
    """Sessions of this principal."""
    retry_after_ms: int = 1000
    store_full: bool = False
    """The store is to hold no further session."""
    too_fast_ms: int = 0
    """More clients come than are let in at a time: after so long this one may try again. 0: it is let in."""


class Refusal(msgspec.Struct, frozen=True):
    """An HTTP answer instead of the upgrade."""

    status: Literal[401, 403, 404, 503]
    code: str
    message: str
    retry_after_ms: int = 0
    reason: str = ""
    """As it is counted, where the code says too little."""

    @property
    def retry_after_s(self) -> int:
        """As the header has it: whole seconds, never earlier."""
        return -(-self.retry_after_ms // 1000)


class KeyRing:
    """The keys that open a session. Without any key everybody is `anonymous`."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._principals = {_digest(key): f"key:{_digest(key).hex()[:16]}" for key in keys}

    def __bool__(self) -> bool:
        return bool(self._principals)

    def principal(self, key: str) -> str | None:
        """Who holds this key, or None if nobody may with it. A client secret is no key: see `secrets`."""
        if not self._principals:
            return None if key.startswith(SECRET_PREFIX) else ANONYMOUS
        return self._principals.get(_digest(key)) if key else None


class Admission:
    """The rules of one gateway. `max_per_key` 0: no limit. `max_waiting`: sockets that have not sent their
    first message yet."""

    def __init__(
        self,
        keys: KeyRing,
        allowed_origins: Collection[str] = (),
        *,
        max_per_key: int = 0,
        max_waiting: int = 256,
    ) -> None:
        self.keys = keys
        self._origins = frozenset(origin.rstrip("/").lower() for origin in allowed_origins)
        self._max_per_key = max_per_key
        self._max_waiting = max_waiting

    def principal(self, offer: Offer, known: str | None = None) -> str | Refusal:
        """Who this is, or why it may not be here at all. `known`: who it is by its client secret."""
        who = known or self.keys.principal(offer.key)
        if who is None:
            return Refusal(401, "invalid_api_key", "the API key is missing or unknown")
        if not self._origin_allowed(offer.origin, offer.host):
            return Refusal(403, "origin_not_allowed", "this origin may not connect; see allowed_origins")
        return who

    def place(self, offer: Offer, place: Place) -> Refusal | None:
        """Whether there is room for one more."""
        if place.draining:
            return Refusal(503, "server_draining", "this server is being taken out of service", place.retry_after_ms)
        if place.too_fast_ms:
            return Refusal(503, "resource_exhausted", "too many clients come at once", place.too_fast_ms, "rate")
        if place.waiting >= self._max_waiting:
            return _busy("too many sockets wait for their first message", place)
        if offer.may_resume:
            return None
        if place.store_full:
            return Refusal(503, "resource_exhausted", STORE_FULL, place.retry_after_ms, "store_full")
        if self._max_per_key and place.of_key >= self._max_per_key:
            return _busy(f"this key has {place.of_key} sessions; its limit is {self._max_per_key}", place)
        if not place.free:
            return _busy("no free place for another session", place)
        if not place.model_free:
            return _busy("no free place for another session of this model", place)
        return None

    def judge(self, offer: Offer, place_for: Callable[[str], Place], known: str | None = None) -> str | Refusal:
        """The principal, or the answer instead of the upgrade. `place_for`: what there is for a principal."""
        who = self.principal(offer, known)
        if isinstance(who, Refusal):
            return who
        return self.place(offer, place_for(who)) or who

    def _origin_allowed(self, origin: str, host: str) -> bool:
        if not origin:
            return True
        origin = origin.rstrip("/").lower()
        return origin in self._origins or (origin != "null" and _same_host(origin, host.lower()))


def _busy(message: str, place: Place) -> Refusal:
    return Refusal(503, "resource_exhausted", message, place.retry_after_ms)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _same_host(origin: str, host: str) -> bool:
    """Equal host and port; a port that is the scheme's own may be left out on either side."""
    try:
        page = urlsplit(origin)
        default = _DEFAULT_PORTS.get(page.scheme)
        asked = urlsplit(f"//{host}")
        return (
            default is not None
            and page.hostname is not None
            and page.hostname == asked.hostname
            and (page.port or default) == (asked.port or default)
        )
    except ValueError:
        return False
