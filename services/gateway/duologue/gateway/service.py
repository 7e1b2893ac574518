"""One running gateway: its pieces wired, its clockwork, and how it ends; its sockets are `listening`.

Rule 1. Only here and in `client_socket` are tasks created.
Rule 2. It ends in order: no new sockets, clients told and given until the deadline, sockets closed with 1012,
        attachments let go in the store, signed off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Protocol

from duologue.bus.link import Endpoint, LinkHandler
from duologue.delivery.breaker import StoreBreaker
from duologue.delivery.memory_watch import watch_memory
from duologue.delivery.pump import Pumps
from duologue.gateway.admission import Admission, KeyRing
from duologue.gateway.app import GatewayApp
from duologue.gateway.attachments import Attachments
from duologue.gateway.chat.endpoint import ChatCompletions
from duologue.gateway.chat.turns import PendingTurns
from duologue.gateway.chores import Chores
from duologue.gateway.connect_rate import ConnectRate
from duologue.gateway.context import Gateway
from duologue.gateway.departures import Departures
from duologue.gateway.fleet import Fleet
from duologue.gateway.front_door import PER_WAITING_SOCKET, FrontDoor
from duologue.gateway.gathering import Gathering
from duologue.gateway.http import http_app
from duologue.gateway.links import ShardLinks
from duologue.gateway.remembering import Remembering
from duologue.gateway.remote import TrustedProxies
from duologue.gateway.router import Router
from duologue.gateway.secrets import ClientSecrets
from duologue.model.records import GatewayRecord, encode_record
from duologue.protocol.duplex import SessionLimits
from duologue.runtime.settings import GatewaySettings
from duologue.store.memory_budget import MemoryBudget
from duologue.store.ports import Journal, JournalAppender, Registration, Registry, SecretStore, SessionStore

_log = logging.getLogger("duologue.gateway")
_LIMITS: Final = SessionLimits()

TICK_S: Final = 0.05
SETTLE_S: Final = 2.0


class Stores(Protocol):
    """The ports of this process, on whatever server."""

    @property
    def sessions(self) -> SessionStore: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def appender(self) -> JournalAppender: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def secrets(self) -> SecretStore: ...

    @property
    def memory(self) -> MemoryBudget | None: ...

    async def look_at_memory(self, journals: int) -> None: ...


class GatewayService:
    """See the module. `make_endpoint` gets the handler of the links; `url` is where clients find it, `metrics_url`
    where this process alone answers, if that is another port."""

    def __init__(
        self,
        settings: GatewaySettings,
        stores: Stores,
        make_endpoint: Callable[[LinkHandler], Endpoint],
        *,
        name: str,
        incarnation: str,
        limits: SessionLimits = _LIMITS,
        url: str = "",
        metrics_url: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.url = url
        self.metrics_url = metrics_url
        self.attachments = Attachments()
        self.chat = PendingTurns(settings.max_chat_turns)
        self.router = Router()
        self.links = ShardLinks(self.attachments, Departures(self.router), self.chat)
        self.chores = Chores()
        self.pumps = Pumps()
        self._pumps_wait = asyncio.Event()
        self.pumps.needed = self._pumps_wait.set
        keys = KeyRing(settings.api_keys)
        admission = Admission(
            keys,
            settings.allowed_origins,
            max_per_key=settings.max_sessions_per_key,
            max_waiting=settings.max_waiting_sockets,
        )
        self.gateway = Gateway(
            incarnation=incarnation,
            admission=admission,
            router=self.router,
            links=self.links,
            attachments=self.attachments,
            sessions=stores.sessions,
            journal=stores.journal,
            registry=stores.registry,
            secrets=stores.secrets,
            appender=stores.appender,
            breaker=StoreBreaker(deadline_s=settings.journal_deadline_ms / 1000),
            pumps=self.pumps,
            chores=self.chores,
            settings=settings,
            limits=limits,
            gathering=Gathering(settings.gather_ms / 1000),
            proxies=TrustedProxies(settings.trusted_proxies),
            connects=ConnectRate(settings.max_connects_per_s),
            now=clock,
        )
        self.gateway.breaker.on_open = self._store_given_up
        self.endpoint = make_endpoint(self.links)
        self.remembering = Remembering(self.gateway)
        self.fleet = Fleet(
            stores.registry,
            self.endpoint,
            self.links,
            self.router,
            self._describe,
            clock,
            answered=self.remembering.answered,
        )
        self._stores = stores
        self.gateway.store_ready = lambda: self.fleet.store_ready(self.gateway.now())
        self.gateway.store_full = self._store_full
        http = http_app(
            self.router,
            keys,
            self,
            self.metrics,
            chat=ChatCompletions(self.router, self.links, self.chat, settings.max_frame_bytes),
            client_secrets=ClientSecrets(keys, stores.secrets, self.router, limits),
        )
        self.app = GatewayApp(self.gateway, http)
        self.door = FrontDoor(
            PER_WAITING_SOCKET * settings.max_waiting_sockets,
            settings.first_message_timeout_s,
            lambda: self.gateway.tally.refused("connections"),
        )
        self.gateway.emptied.set()
        self._drain_task: asyncio.Task[None] | None = None
        self.leave_port: Callable[[], None] | None = None
        """Set where other gateways share the port: takes this one out of it."""
        self.awaits_port = False
        """The port is shared, and this gateway does not listen there yet."""
        self.drained = asyncio.Event()
        """No socket is left, or the deadline of the drain has come."""
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        """Why its clockwork has stopped: `Replaced`, or a fault of ours. The process must end."""

    def _describe(self) -> Registration:
        sockets, sessions = len(self.gateway.sockets), len(self.attachments)
        return Registration(
            kind="gateway",
            id=self.name,
            incarnation=self.incarnation,
            capacity=self.gateway.settings.max_sessions,
            load=sessions,
            extra=encode_record(GatewayRecord(sockets, sessions, self.url, self.metrics_url)),
        )

    def metrics(self) -> bytes:
        """The exposition of this process."""
        return self.gateway.tally.exposition(self.gateway)

    # -- operations -------------------------------------------------------------------------------------

    def unready(self) -> Sequence[str]:
        """What keeps clients from being served here now."""
        return self.cannot_open() or (["this gateway does not listen yet"] if self.awaits_port else [])

    def port_taken(self) -> None:
        self.awaits_port = False

    def cannot_open(self) -> Sequence[str]:
        """What keeps a session from being opened here now."""
        if self.gateway.draining:
            return ["this gateway is draining"]
        if not self.gateway.store_ready():
            return ["the store does not answer"]
        if not self.gateway.appender.connected:
            return ["the journal does not answer"]
        missing = self.router.unready()
        unreachable = [
            f"shard {shard.id} is not linked yet"
            for shard in self.router.shards
            if self.links.of(shard.incarnation) is None
        ]
        return [*missing, *unreachable]

    def drain(self, deadline_s: float, *, with_all: bool = False) -> None:
        """Take no new sockets, tell the clients, and end at the deadline. Once.

        A shared port is left to the others, unless they end too (`with_all`): then a client is better refused
        in words than not connected at all.
        """
        if self.gateway.draining:
            return
        self.gateway.draining = True
        if self.leave_port is not None and not with_all:
            self.leave_port()
        _log.info("draining: %d sockets have %.1f s", len(self.gateway.sockets), deadline_s)
        self._drain_task = asyncio.create_task(self._drain(deadline_s))

    async def _drain(self, deadline_s: float) -> None:
        for client in list(self.gateway.sockets):
            client.drain(deadline_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.gateway.emptied.wait(), deadline_s)
        for client in list(self.gateway.sockets):
            client.restart()
        self.drained.set()

    # -- life -------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Everything but the listening socket. Raises `StoreUnavailable`, `BusError`."""
        await self.endpoint.start()
        try:
            await self.fleet.join()
            watch = watch_memory(self._stores, self.router.sessions, _log)
            work = [asyncio.create_task(job) for job in (self.fleet.run(), self.chores.run(), self._tick(), watch)]
            for task in work:
                task.add_done_callback(self._work_ended)
            try:
                yield
            finally:
                await self.chores.settled(SETTLE_S)
                for task in work:
                    task.cancel()
                await asyncio.wait(work)
                await self.fleet.leave()
        finally:
            await self.endpoint.close()

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failure = self.failure or failure
            self.failed.set()

    def _store_full(self) -> bool:
        memory = self._stores.memory
        return memory is not None and memory.full and self.gateway.store_ready()

    def _store_given_up(self) -> None:
        deadline_s = self.gateway.breaker.deadline_s
        _log.warning("the journal has not answered for %g s: until it does events leave without it", deadline_s)

    async def _tick(self) -> None:
        """What waits for time to pass in the delivery (a store that does not answer)."""
        while True:
            await self._pumps_wait.wait()
            self._pumps_wait.clear()
            while len(self.pumps):
                due = self.gateway.now() + TICK_S
                await asyncio.sleep(TICK_S)
                self.gateway.breaker.looked(due, self.gateway.now())
                self.pumps.tick()
