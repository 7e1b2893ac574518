"""What every socket of one gateway shares."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from duologue.delivery.breaker import StoreBreaker
from duologue.delivery.pump import Pumps
from duologue.gateway.admission import Admission, Place
from duologue.gateway.attachments import Attachments
from duologue.gateway.chores import Chores
from duologue.gateway.connect_rate import ConnectRate
from duologue.gateway.gathering import Gathering
from duologue.gateway.handshake import Offer
from duologue.gateway.links import ShardLinks
from duologue.gateway.remote import TrustedProxies
from duologue.gateway.router import Router
from duologue.gateway.tally import Tally
from duologue.protocol.duplex import SessionLimits
from duologue.runtime.settings import GatewaySettings
from duologue.store.ports import Journal, JournalAppender, Registry, SecretStore, SessionStore

if TYPE_CHECKING:
    from duologue.gateway.client_socket import ClientSocket


MAX_GAPS: Final = 4096
RETRY_AFTER_MS: Final = (1000, 3000)
"""When a client that found no room may try again: by chance, so that those refused together do not come together."""


@dataclass(slots=True)
class Gateway:
    """The pieces, wired once by `serve`."""

    incarnation: str
    admission: Admission
    router: Router
    links: ShardLinks
    attachments: Attachments
    sessions: SessionStore
    journal: Journal
    registry: Registry
    secrets: SecretStore
    appender: JournalAppender
    breaker: StoreBreaker
    pumps: Pumps
    chores: Chores
    settings: GatewaySettings = GatewaySettings()
    limits: SessionLimits = SessionLimits()
    """What the shards grant, as far as a provisional session states it."""
    tally: Tally = field(default_factory=Tally)
    gathering: Gathering = field(default_factory=lambda: Gathering(GatewaySettings().gather_ms / 1000))
    draining: bool = False
    sockets: set[ClientSocket] = field(default_factory=set)
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    """No socket is accepted at the moment."""
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    gaps: dict[str, float] = field(default_factory=dict)
    """Sessions whose client was told of a gap here, and when: its next resume gets the items."""

    connects: ConnectRate = field(default_factory=lambda: ConnectRate(GatewaySettings().max_connects_per_s))
    now: Callable[[], float] = time.monotonic
    store_ready: Callable[[], bool] = lambda: True
    """Whether the store answers now, as far as is known without asking it."""
    store_full: Callable[[], bool] = lambda: False
    """It answers, and is too full for another session. Of one that takes nothing any more `store_ready` tells."""

    def enter(self, socket: ClientSocket) -> None:
        """An accepted socket."""
        self.sockets.add(socket)
        self.emptied.clear()

    def leave(self, socket: ClientSocket) -> None:
        """It is served no more."""
        self.sockets.discard(socket)
        if not self.sockets:
            self.emptied.set()

    def place(self, offer: Offer, principal: str) -> Place:
        """What there is room for."""
        return Place(
            draining=self.draining,
            waiting=self.waiting(),
            free=len(self.attachments) < self.settings.max_sessions and self.router.takes(),
            model_free=offer.model not in self.router.models or self.router.takes(offer.model),
            store_full=self.store_full(),
            of_key=self.attachments.of_principal(principal),
            retry_after_ms=random.randint(*RETRY_AFTER_MS),
            too_fast_ms=self.connects.take(self.now()),
        )

    def waiting(self) -> int:
        """Sockets that have said nothing yet that makes them a session."""
        return sum(socket.waiting for socket in self.sockets)

    def remember_gap(self, session_id: str) -> None:
        """The client of this session was told of a gap: its next resume gets the conversation."""
        self.gaps.pop(session_id, None)
        if len(self.gaps) >= MAX_GAPS:
            self.gaps.pop(next(iter(self.gaps)))
        self.gaps[session_id] = self.now()

    def forget_gap(self, session_id: str) -> bool:
        """Whether its client was told of a gap here."""
        return self.gaps.pop(session_id, None) is not None

    async def live_gateways(self) -> frozenset[str]:
        """Incarnations whose attachments stand: this one's always do. Raises `StoreUnavailable`.

        Asked of the store each time: what we heard at our last beat may lack a gateway that has just started,
        and a token that it rotated must not become good again.
        """
        roster = await self.registry.members("gateway")
        heard = {member.incarnation for member in roster.members}
        return self.known_gateways() | heard

    def known_gateways(self) -> frozenset[str]:
        """Those of `live_gateways` that we have heard of already."""
        return self.router.gateways | {self.incarnation}
