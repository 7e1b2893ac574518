"""One session shard: everything wired, from the sockets to the store, and its life from start to end.

Start: the store answers, the bus is bound, the shard is registered; from then on it is ready.
End: no new session, every client is told (`shutdown`, 1012), what they have seen is acknowledged or the
deadline is over, the registration is taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from duologue.bus.endpoint import LinkEndpoint
from duologue.bus.link import LinkHandler, Peer
from duologue.delivery.memory_watch import watch_memory
from duologue.model.records import ShardRecord, encode_record
from duologue.runtime.incarnation import process_incarnation
from duologue.runtime.settings import UsageSettings
from duologue.session.accounts import Accounts
from duologue.session.admission import Admission
from duologue.session.background import Background
from duologue.session.chat_turns import ChatTurns
from duologue.session.cleanup import Cleanup
from duologue.session.clockwork import Clockwork
from duologue.session.core.engine_session import STATE_VERSION
from duologue.session.core.limits import SessionLimits
from duologue.session.core.machine import DuplexSessionMachine
from duologue.session.detached import Detacher
from duologue.session.detector import SpeechDetector
from duologue.session.due import DueSweep
from duologue.session.handing_over import HandOver
from duologue.session.inheriting import Inheritance, RestoreMachine
from duologue.session.mailbox import MAX_FACTS
from duologue.session.manager import DuplexSessionManager
from duologue.session.membership import BEAT_S, EXPIRY_S, Membership, Replaced
from duologue.session.offload import Job, OffloadPool
from duologue.session.opening import Opener, OpenMachine
from duologue.session.operator_routes import OperatorRoutes
from duologue.session.pipelines import Pipelines
from duologue.session.reaper import Reaper
from duologue.session.recorder import Recorder
from duologue.session.refusals import RESTART
from duologue.session.stages import StageHub
from duologue.session.surroundings import Surroundings
from duologue.session.switchboard import Switchboard
from duologue.session.tallies import Tallies
from duologue.session.usage_hook import HttpPost, UsageHook
from duologue.session.vitals import Vitals
from duologue.session.workers import StageWorkers
from duologue.store.memory_budget import MemoryBudget
from duologue.store.ports import (
    Holdings,
    Journal,
    JournalAppender,
    Registration,
    Registry,
    SessionStore,
    StoreUnavailable,
)

_log = logging.getLogger("duologue.session")

PUMP_TICK_S: Final = 0.05
USAGE_S: Final = 2.0
"""How long a shard that ends tries to have its accounts taken."""
LEAVE_S: Final = 1.0
"""How long a shard that ends looks for what was handed over to it too late."""


class Store(Protocol):
    """Every port of one store (`RedisStore`, `MemoryStore`)."""

    @property
    def sessions(self) -> SessionStore: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def holdings(self) -> Holdings: ...
    @property
    def appender(self) -> JournalAppender: ...
    @property
    def memory(self) -> MemoryBudget | None: ...
    async def look_at_memory(self, journals: int) -> None: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...


class MakeEndpoint(Protocol):
    def __call__(self, me: Peer, handler: LinkHandler) -> LinkEndpoint: ...


class ShardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one shard is told. Times in seconds."""

    id: str
    max_sessions: int
    limits: SessionLimits = SessionLimits()
    mailbox: int = MAX_FACTS
    offload_threads: int = 2
    reaper_interval_s: float = 0.5
    sweep_s: float = 1.0
    """How often it looks for sessions of dead shards; 0: never, only gateways ask for theirs."""
    beat_s: float = BEAT_S
    expiry_s: float = EXPIRY_S
    """Of the registration."""
    record_to: Path | None = None
    usage: UsageSettings = UsageSettings()
    standby: bool = False
    """New sessions are to go to others, as long as one of them takes any. Only gateways read it."""
    shutdown_s: float = 10.0


class Shard:
    """See the module."""

    def __init__(
        self,
        options: ShardOptions,
        *,
        pipelines: Pipelines,
        store: Store,
        make_endpoint: MakeEndpoint,
        open_machine: OpenMachine,
        restore_machine: RestoreMachine = DuplexSessionMachine.restore,
        offload_job: Job,
        executor: Executor | None = None,
        detector: SpeechDetector | None = None,
        incarnation: str = "",
    ) -> None:
        """`executor`: for offloaded jobs, instead of threads. `detector`: started here; without one sessions
        are told that their turns are not detected. `incarnation`: where it is not the process's own."""
        limits = msgspec.structs.replace(
            options.limits,
            detects_speech=detector is not None,
            judges_turns=detector is not None and detector.judges_turns,
        )
        self.options = options = msgspec.structs.replace(options, limits=limits)
        self.detector = detector
        self.incarnation = incarnation or process_incarnation()
        self.pipelines = pipelines
        self.store = store
        self.background = Background()
        self.tallies = Tallies()
        self.workers = StageWorkers(self._dial, self._hang_up)
        self.hub = StageHub(self.workers)
        self.cleanup = Cleanup(store.sessions, store.journal, self.background)
        self.offload = OffloadPool(offload_job, threads=options.offload_threads, executor=executor)
        self.detacher = Detacher(
            store.journal, store.appender, self.background, lambda: asyncio.get_running_loop().time()
        )
        self.detacher.pumps.needed = self._pumps_wait
        around = Surroundings(
            store.sessions,
            store.journal,
            self.background,
            self.cleanup,
            self.offload,
            self.hub,
            self.detacher.make,
            self.tallies,
            Recorder(options.record_to, limits) if options.record_to is not None else None,
            options.mailbox,
            detector,
            Clockwork(),
            self._make_accounts(options.usage),
        )
        opener = Opener(
            incarnation=self.incarnation,
            pipelines=pipelines,
            open_machine=open_machine,
            limits=options.limits,
            surroundings=around,
        )
        per_pipeline = {pipeline.name: pipeline.spec.max_sessions for pipeline in pipelines}
        self.admission = Admission(options.max_sessions, per_pipeline)
        self.manager = manager = DuplexSessionManager(
            admission=self.admission, opener=opener, around=around, limits=options.limits
        )
        self.operator = OperatorRoutes(manager)
        self.vitals = manager.vitals = Vitals(options.beat_s, options.expiry_s)
        self.inheritance = manager.inheritance = Inheritance(
            incarnation=self.incarnation,
            pipelines=pipelines,
            restore=restore_machine,
            reopen=opener.again,
            admission=self.admission,
            surroundings=around,
            arrived=manager.inherited,
            failed=manager.nothing_came,
            took_s=self.tallies.adoption_s,
        )
        self.hand_over = HandOver(
            incarnation=self.incarnation,
            writes=STATE_VERSION,
            sessions=store.sessions,
            holdings=store.holdings,
            vitals=self.vitals,
            residents=lambda: manager.residents,
        )
        self._drain: asyncio.Task[None] | None = None
        self._due = DueSweep(
            incarnation=self.incarnation,
            name=options.id,
            capacity=options.max_sessions,
            holdings=store.holdings,
            sessions=store.sessions,
            vitals=self.vitals,
            inheritance=self.inheritance,
            held=manager.held,
            accepting=lambda: self.admission.accepting,
            every_s=options.sweep_s,
            background=self.background,
        )
        if options.sweep_s:
            manager.takes_in = self._due.stir
        self.chat = ChatTurns(
            pipelines=pipelines,
            open_machine=open_machine,
            limits=options.limits,
            hub=self.hub,
            offload=self.offload,
            accepting=lambda: self.admission.accepting,
        )
        self.switchboard = Switchboard(self.manager, self.hub, self.chat)
        self.endpoint = make_endpoint(Peer(options.id, "shard", self.incarnation), self.switchboard)
        self.membership = Membership(
            store.registry, self._describe, self._learn, beat_s=options.beat_s, expiry_s=options.expiry_s
        )
        manager.look_again = self.membership.hurry
        self._reaper = Reaper(around, lambda: self.manager.residents, options.reaper_interval_s)
        self._pump_timer: asyncio.TimerHandle | None = None
        self._started = False
        self.metrics_url = ""

    def _make_accounts(self, usage: UsageSettings) -> Accounts:
        post = HttpPost(usage.url, token=usage.token, timeout_s=usage.timeout_s) if usage.url else None
        self._telling = Background()
        self.accounts = Accounts(log=usage.log, hook=None if post is None else UsageHook(post, self._telling))
        return self.accounts

    # -- what others see -------------------------------------------------------------------------------

    def not_ready_because(self) -> str:
        """Empty: it is registered, the store answers, and new sessions are taken."""
        if not self._started:
            return "not registered yet"
        if not self.admission.accepting:
            return "it takes no more sessions"
        return "" if self.membership.store_answers() else "the store does not answer"

    def _learn(self, members: Iterable[Registration]) -> None:
        members = tuple(members)
        self.hub.update(members)
        if self.vitals.heard(members, asyncio.get_running_loop().time()):
            self._reaper.doubt()
        self.manager.roster_heard()

    def _describe(self) -> Registration:
        admission, max_sessions = self.admission, self.options.max_sessions
        records = tuple(
            pipeline.record(
                admission.used(pipeline.name),
                ready=self.workers.ready(pipeline.spec),
                chat_turns=self.chat.used(pipeline.name),
            )
            for pipeline in self.pipelines
        )
        record = ShardRecord(
            pipelines=records,
            sessions=len(admission),
            max_sessions=max_sessions,
            accepting=admission.accepting,
            metrics_url=self.metrics_url,
            operator_token=self.operator.token,
            reads_state=STATE_VERSION,
            writes_state=STATE_VERSION,
            standby=self.options.standby,
            takes_kept=True,
        )
        return Registration(
            kind="shard",
            id=self.options.id,
            incarnation=self.incarnation,
            endpoint=self.endpoint.address,
            capacity=max_sessions,
            load=len(admission),
            pipelines=tuple(pipeline.name for pipeline in self.pipelines),
            extra=encode_record(record),
        )

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises `StoreUnavailable` or `BusError`: nothing is left running then."""
        started = False
        if self.detector is not None:
            self.detector.start()  # it loads its model meanwhile
        try:
            await self.store.open()
            await self.endpoint.start()
            await self.membership.join()
            started = True
        finally:
            if not started:
                await self.endpoint.close()
                await self.store.close()
                self._end_threads()
        self._started = True
        _log.info(
            "shard %s is ready%s at %s: at most %d sessions of %s",
            self.options.id,
            " on standby" if self.options.standby else "",
            self.endpoint.address,
            self.options.max_sessions,
            ", ".join(pipeline.name for pipeline in self.pipelines),
        )

    async def run(self, stopped: Coroutine[Any, Any, None]) -> None:
        """Serve until `stopped` is over. Raises `Replaced`."""
        loop = asyncio.get_running_loop()
        work = [self.membership.run(), self._reaper.run(), stopped]
        if self.options.sweep_s:
            work.append(self._due.run())
        if self.store.memory is not None:
            work.append(watch_memory(self.store, self.vitals.sessions))
        tasks = [loop.create_task(one) for one in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        for task in done:
            task.result()

    def drain(self, deadline_s: float) -> None:
        """Take no more sessions, and hand over those that are here within so long. Once."""
        self.admission.accepting = False
        if self._drain is None:
            self.tallies.drains += 1
            self._drain = asyncio.get_running_loop().create_task(self._hand_over(deadline_s))

    async def _hand_over(self, deadline_s: float) -> None:
        """Nobody hands anything over to us from here on, and we to nobody who does the same."""
        _log.info("shard %s drains: %d sessions have %.1f s", self.options.id, len(self.manager), deadline_s)
        with contextlib.suppress(Replaced):
            await self.membership.beat()
        until = asyncio.get_running_loop().time() + deadline_s
        while (left_s := until - asyncio.get_running_loop().time()) > 0 and (len(self.manager) or self.manager.opening):
            if not await self.hand_over.run(left_s):
                return
            await asyncio.sleep(PUMP_TICK_S)

    async def stop(self) -> None:
        """Hand over what somebody takes, tell the clients of the others, wait until they have heard it or the
        deadline is over, and let go of all."""
        self.drain(self.options.shutdown_s)
        if self._drain is not None:
            await asyncio.wait((self._drain,), timeout=self.options.shutdown_s)
            self._drain.cancel()
        self.manager.close_all("shutdown", RESTART)
        self.chat.close_all()
        try:
            async with asyncio.timeout(self.options.shutdown_s):
                with contextlib.suppress(Replaced):
                    await self.membership.beat()
                await self.manager.empty()
                await self.background.settle()
        except TimeoutError:
            _log.warning("%d sessions have not ended in time and are left", len(self.manager))
        for resident in self.manager.residents:
            resident.runner.finish()
        if self.options.sweep_s:
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._due.leave(self.cleanup.release)
                    await self.background.settle()
        await self.background.close()
        await self._tell_usage()
        await self.membership.leave()
        if self._pump_timer is not None:
            self._pump_timer.cancel()
        await self.endpoint.close()
        await self.store.close()
        self._end_threads()
        _log.info("shard %s has ended", self.options.id)

    async def _tell_usage(self) -> None:
        """What is known of the sessions that have ended; the log gets what is not taken in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(USAGE_S):
                await self._telling.settle()
        await self._telling.close()
        if self.accounts.hook is not None:
            self.accounts.hook.close()

    def _end_threads(self) -> None:
        self.offload.close()
        if self.detector is not None:
            self.detector.close()

    def _pumps_wait(self) -> None:
        if self._pump_timer is None:
            self._pump_timer = asyncio.get_running_loop().call_later(PUMP_TICK_S, self._tick_pumps)

    def _tick_pumps(self) -> None:
        self._pump_timer = None
        self.detacher.pumps.tick()
        if len(self.detacher.pumps):
            self._pumps_wait()

    def _dial(self, name: str, address: str) -> None:
        self.endpoint.dial(name, address)

    def _hang_up(self, name: str) -> None:
        self.endpoint.hang_up(name)
