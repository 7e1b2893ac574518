"""A gateway from its settings: the store, the bus, the service, and what makes a start impossible."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from duologue.bus.configured import dialling_endpoint, is_loopback
from duologue.bus.link import Endpoint, LinkHandler, Peer
from duologue.protocol.duplex import SessionLimits
from duologue.runtime.settings import MIB, BusSettings, GatewaySettings, SystemSettings
from duologue.store.journals import JournalLimits
from duologue.store.memory_budget import MemoryShares
from duologue.store.redis import RedisStore


class CannotStart(Exception):
    """One line that says why, and what to do."""


def check_exposure(settings: GatewaySettings) -> None:
    """Without keys only this machine may connect. Raises `CannotStart`."""
    if settings.api_keys or settings.insecure or is_loopback(settings.host):
        return
    raise CannotStart(
        f"refusing to listen on {settings.host} without keys: set [gateway] api_keys, "
        "listen on 127.0.0.1, or say --insecure"
    )


def make_store(settings: SystemSettings) -> RedisStore:
    """The ports of this process, not connected yet. Raises `CannotStart`."""
    store = settings.store
    limits = JournalLimits(ttl_s=store.session_ttl_s, max_bytes=store.journal_max_bytes, max_age_s=store.journal_ttl_s)
    shares = MemoryShares(store.memory_budget_mb * MIB, store.memory_trim_from, store.memory_refuse_from)
    try:
        return RedisStore(
            store.url,
            store.journal_url,
            limits=limits,
            session_ttl_s=store.session_ttl_s,
            timeout_s=store.timeout_s,
            replicas=store.replicas,
            shares=shares,
        )
    except ValueError as error:
        raise CannotStart(f"[store] url: {error}") from None


def endpoint_maker(bus: BusSettings, name: str, incarnation: str) -> Callable[[LinkHandler], Endpoint]:
    """A gateway only dials. What is returned raises `BusError` for keys that are none."""
    return partial(dialling_endpoint, bus, Peer(name, "gateway", incarnation))


def granted_limits(settings: SystemSettings) -> SessionLimits:
    """What the shards grant a session, as the same settings tell them."""
    session = settings.session
    return SessionLimits(
        idle_timeout_s=session.idle_ttl_s,
        max_session_s=session.max_session_s,
        disconnect_grace_s=session.disconnect_grace_s,
        overflow_policy=session.overflow_policy,
    )
