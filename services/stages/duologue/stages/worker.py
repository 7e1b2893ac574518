"""A stage worker between its links and its engines.

Rule 1. Everything here runs on the event loop's thread and never waits.
Rule 2. What came with one turn of the loop is batched: engines are pumped once, at the end of it.
Rule 3. Whatever is asked is answered: an abort and a close always, an open with what was refused, a unit with
        its outputs or with why it failed. Only what carries a stale fence is dropped, and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from duologue.bus.link import Link, LinkHandler, PeerLost
from duologue.bus.messages import (
    Abort,
    Aborted,
    AnyMessage,
    Append,
    CloseStages,
    Control,
    ExportStages,
    ImportStages,
    OpenStages,
    Output,
    StagesClosed,
    StagesExported,
    StagesOpened,
    StagesRefused,
    UnitFailed,
)
from duologue.fence import StageFence
from duologue.model.engine import NEXT, NO_UNIT, SESSION, Emission, StageUnit
from duologue.runtime.grid import next_on_grid
from duologue.stages.counts import WorkerCounts
from duologue.stages.cursor import Cursor, Entry
from duologue.stages.door import Binding, Claim, Door
from duologue.stages.exporting import NOT_NOW, Exporter
from duologue.stages.hosted import HostedStage
from duologue.stages.outbox import Outbox

_log = logging.getLogger("duologue.stages")

CHECK_S = 0.25
"""How often deadlines and orphans are looked at."""


class StageWorker(LinkHandler):
    """See the module. `unhealthy` is set, with the reason, when a step hangs: the process must end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        orphan_s: float = 10.0,
        max_kept_bytes: int = 8 * 1024 * 1024,
        max_export_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        self._loop = loop
        self._max_kept_bytes = max_kept_bytes
        self.door = Door(orphan_s)
        self.counts = WorkerCounts()
        self.stages: dict[tuple[str, int], HostedStage] = {}
        self._exporter = Exporter(self.stages, self.counts, self._send, max_export_bytes)
        self.accepting = True
        self._drained_at: float | None = None
        self.drained = asyncio.Event()
        """It is being drained, and nobody who could be told anything has a session here."""
        self.unhealthy: asyncio.Future[str] = loop.create_future()
        self._to_pump: deque[HostedStage] = deque()
        self._pump_scheduled = False
        self._outboxes: dict[Link, Outbox] = {}
        """Of links that have no credit now."""
        self._check: asyncio.TimerHandle | None = None

    def host(self, stages: Iterable[HostedStage]) -> None:
        for stage in stages:
            self.stages[stage.pipeline, stage.index] = stage

    def drain(self, deadline_s: float) -> None:
        """Take no more sessions; the shards move those that are here, within so long. Once."""
        self.accepting = False
        if self._drained_at is None:
            self._drained_at = self._loop.time() + deadline_s
            _log.info("draining: %d sessions have %.1f s", len(self.door), deadline_s)
            self._see_whether_drained()

    def _see_whether_drained(self) -> None:
        """Sessions without a link do not count: their shard is lost, and an heir opens its stages elsewhere."""
        if self._drained_at is not None and not any(binding.link is not None for binding in self.door):
            self.drained.set()

    @property
    def draining_s(self) -> float:
        """How long its sessions still have to move; -1: it is not being drained."""
        return -1.0 if self._drained_at is None else max(0.0, self._drained_at - self._loop.time())

    def start(self) -> None:
        self._check = self._loop.call_later(CHECK_S, self._look)

    def show(self) -> None:
        """Set the gauges, for a scrape."""
        for stage in self.stages.values():
            stage.show()
        for link, outbox in self._outboxes.items():
            self.counts.show_pending(link.peer.name, outbox.kept_bytes)

    def stop(self) -> None:
        if self._check is not None:
            self._check.cancel()

    # -- links -----------------------------------------------------------------------------------------

    def on_ready(self, link: Link) -> None:
        _log.info("shard %s (%s) is there", link.peer.name, link.peer.incarnation)

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        if type(message) is Append:
            self._append(link, message, frames)
        elif isinstance(message, Abort):
            self._abort(link, message)
        elif isinstance(message, OpenStages | ImportStages):
            self._open(link, message, frames)
        elif isinstance(message, CloseStages):
            self._close(link, message)
        elif isinstance(message, Control):
            self._control(link, message, frames)
        elif isinstance(message, ExportStages):
            self._exporter.ask(self.door.admit(message.session_id, message.fence, link), link, message)
        else:
            _log.warning("%s sent a %s, which no worker takes", link.peer.name, type(message).__name__)

    def on_credit(self, link: Link) -> None:
        outbox = self._outboxes.get(link)
        if outbox is not None and outbox.drain(link.send):
            del self._outboxes[link]
            self.counts.show_pending(link.peer.name, 0)

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        if self._outboxes.pop(link, None) is not None:
            self.counts.show_pending(link.peer.name, 0)
        orphans = self.door.lose(link, self._loop.time())
        for binding in orphans:
            # Nobody wants what waits for the engines now.
            for index, cursor in binding.cursors.items():
                self.stages[binding.pipeline, index].drop_waiting(cursor)
        name, reason = lost.peer.name, lost.reason
        _log.info("shard %s is gone (%s); %d sessions wait for an heir", name, reason, len(orphans))
        self._see_whether_drained()

    # -- open and close --------------------------------------------------------------------------------

    def _open(self, link: Link, message: OpenStages | ImportStages, frames: Sequence[bytes]) -> None:
        session_id, fence = message.session_id, message.fence
        claim = self.door.claim(session_id, fence)
        held = self.door.get(session_id)
        if claim is Claim.STALE:
            self._refuse(link, message.pipeline, session_id, fence, "stale_fence", "a newer owner has the session")
            return
        if held is not None and claim is Claim.REPEATED and isinstance(message, OpenStages):
            if not held.opening:
                self._send(held, StagesOpened(session_id, held.fence, tuple(held.cursors)))
            return
        if held is not None:
            self._release(held)
        if not self.accepting:
            self._refuse(
                link,
                message.pipeline,
                session_id,
                fence,
                "worker_drained",
                "this worker takes no more sessions",
            )
            return
        self._bind(link, message, frames)

    def _bind(self, link: Link, message: OpenStages | ImportStages, frames: Sequence[bytes]) -> None:
        session_id, fence = message.session_id, message.fence
        hosted = [self.stages.get((message.pipeline, stage)) for stage in message.stages]
        if None in hosted or len(frames) != len(hosted):
            what = f"stages {list(message.stages)} of {message.pipeline}, {len(frames)} configurations"
            self._refuse(link, message.pipeline, session_id, fence, "unknown_stage", f"this worker cannot open {what}")
            return
        binding = Binding(session_id, fence, message.pipeline, link)
        self.door.add(binding)
        for stage, config in zip(hosted, frames, strict=True):
            assert stage is not None
            cursor = stage.open(binding, fence.epoch, bytes(config), imports=isinstance(message, ImportStages))
            if cursor is None:
                self._release(binding)
                reason = f"stage {stage.spec.name} of {message.pipeline} has no free slot"
                self._refuse(link, message.pipeline, session_id, fence, "resource_exhausted", reason)
                return
            binding.cursors[stage.index] = cursor
            binding.opening += 1

    def opened(self, stage: HostedStage, cursor: Cursor, refused: tuple[str, str] | None) -> None:
        binding = cursor.holder
        assert isinstance(binding, Binding)
        if self.door.get(binding.session_id) is not binding:
            return
        binding.opening -= 1
        if refused is not None:
            link = binding.link
            self._release(binding)
            if link is not None:
                self._refuse(link, binding.pipeline, binding.session_id, binding.fence, *refused)
        elif not binding.opening:
            self._send(binding, StagesOpened(binding.session_id, binding.fence, tuple(binding.cursors)))

    def _refuse(self, link: Link, pipeline: str, session_id: str, fence: StageFence, code: str, message: str) -> None:
        self.counts.refuse(pipeline, code)
        link.send(StagesRefused(session_id, fence, code, message))

    def _close(self, link: Link, message: CloseStages) -> None:
        binding = self.door.closable(message.session_id, message.fence)
        if binding is not None:
            self._release(binding)
        link.send(StagesClosed(message.session_id, message.fence))

    def _release(self, binding: Binding) -> None:
        """Give back everything that the session has here."""
        self.door.remove(binding)
        self._unkeep(binding)
        cursors, binding.cursors = binding.cursors, {}  # each refers back to its binding: nothing is left of the two
        for index, cursor in cursors.items():
            self.stages[binding.pipeline, index].close(cursor)
        self._see_whether_drained()

    # -- units -----------------------------------------------------------------------------------------

    def _append(self, link: Link, message: Append, frames: Sequence[bytes]) -> None:
        binding = self.door.admit(message.session_id, message.fence, link)
        if binding is None:
            self._not_admitted(link, message)
            return
        binding.export = None
        cursor = binding.cursors.get(message.stage)
        if cursor is None or not frames:
            self._unit_failed(binding, message.stage, message.unit, "unknown_stage", "no such stage here")
            return
        stage = self.stages[binding.pipeline, message.stage]
        unit = StageUnit(
            cursor.slot,
            message.unit,
            message.turn_id,
            message.fence.epoch,
            message.attempt,
            frames[0],
            tuple(frames[1:]),
            message.replay,
        )
        deadline_s = message.deadline_ms / 1000 if message.deadline_ms else stage.deadline_s
        entry = Entry(cursor, unit, self._loop.time(), deadline_s, message.last, message.urgent)
        self._enter(stage, binding, entry)

    def _enter(self, stage: HostedStage, binding: Binding, entry: Entry) -> None:
        if not stage.append(entry):
            stage.counts.fail("stage_backlog")
            text = f"stage {stage.spec.name} has too many units of this session waiting"
            self._unit_failed(binding, stage.index, entry.unit.unit, "stage_backlog", text)

    def _not_admitted(self, link: Link, message: Append) -> None:
        self.counts.stale()
        if self.door.get(message.session_id) is not None:
            return
        session_id, fence, stage, unit = message.session_id, message.fence, message.stage, message.unit
        text = "the session has no slot in this worker"
        link.send(UnitFailed(session_id, fence, stage, unit, "stage_not_open", text, True))

    def _abort(self, link: Link, message: Abort) -> None:
        binding = self.door.advance(message.session_id, message.fence, link)
        consumed: dict[int, None] = {}
        dropped: dict[int, None] = {}
        if binding is not None:
            binding.export = None
            self._unkeep(binding)
            for index, cursor in sorted(binding.cursors.items()):
                stage = self.stages[binding.pipeline, index]
                begun, waiting = stage.cancel(cursor, message.fence.epoch)
                consumed.update(dict.fromkeys(begun))
                # What waits in a later stage has been through the first: only there is input unread.
                (dropped if index == 0 else consumed).update(dict.fromkeys(waiting))
        consumed.pop(NO_UNIT, None)
        unread = tuple(unit for unit in dropped if unit not in consumed)
        link.send(Aborted(message.session_id, message.fence, tuple(consumed), unread))

    def _control(self, link: Link, message: Control, frames: Sequence[bytes]) -> None:
        binding = self.door.admit(message.session_id, message.fence, link)
        cursor = None if binding is None else binding.cursors.get(message.stage)
        if binding is None or cursor is None:
            self.counts.stale()
            return
        binding.export = None
        stage = self.stages[binding.pipeline, message.stage]
        stage.control(cursor, message.kind, frames[0] if frames else b"")

    # -- results ---------------------------------------------------------------------------------------

    def emitted(self, stage: HostedStage, cursor: Cursor, entry: Entry | None, emission: Emission) -> None:
        binding = cursor.holder
        assert isinstance(binding, Binding)
        if entry is None and cursor.engine_epoch != binding.fence.epoch:
            stage.counts.drop("epoch")  # made before the engine knew of the cancellation
            return
        if binding.export is not None:
            self._emitted_of_exported(stage, binding, entry, emission)
        else:
            self._pass_on(stage, binding, entry, emission)

    def _emitted_of_exported(
        self, stage: HostedStage, binding: Binding, entry: Entry | None, emission: Emission
    ) -> None:
        """Of a session that is to leave: what the last units come to. If more comes, its state was not all of it."""
        export = binding.export
        if export is not None and export.states is not None:
            self._exporter.withhold(binding, NOT_NOW, f"stage {stage.spec.name} has made something after its state")
        self._pass_on(stage, binding, entry, emission)
        self._exporter.look(binding)

    def _pass_on(self, stage: HostedStage, binding: Binding, entry: Entry | None, emission: Emission) -> None:
        failure = emission.failure
        if failure is not None:
            stage.counts.fail(failure.code)
            self._unit_failed(binding, stage.index, emission.unit, failure.code, failure.message, failure.retryable)
            return
        last = emission.last and (entry is None or entry.last)
        to = stage.index + 1 if emission.to == NEXT else emission.to
        if to != SESSION:
            following = binding.cursors.get(to)
            if following is not None:
                self._hand_over(binding, to, following, entry, emission, last)
                return
        message = Output(binding.session_id, binding.fence, stage.index, to, emission.unit, emission.turn_id, last)
        self._send(binding, message, (emission.head, *emission.frames))

    def _hand_over(
        self, binding: Binding, to: int, cursor: Cursor, entry: Entry | None, emission: Emission, last: bool
    ) -> None:
        """To a stage of this worker: nothing is copied and no message is made."""
        stage = self.stages[binding.pipeline, to]
        attempt, urgent, replay = (0, False, False)
        if entry is not None:
            attempt, urgent, replay = entry.unit.attempt, entry.urgent, entry.unit.replay
        unit = StageUnit(
            cursor.slot,
            emission.unit,
            emission.turn_id,
            binding.fence.epoch,
            attempt,
            emission.head,
            emission.frames,
            replay,
        )
        self._enter(stage, binding, Entry(cursor, unit, self._loop.time(), stage.deadline_s, last, urgent))

    def failed(
        self, stage: HostedStage, cursor: Cursor, unit: StageUnit, code: str, message: str, retryable: bool
    ) -> None:
        binding = cursor.holder
        assert isinstance(binding, Binding)
        stage.counts.fail(code)
        self._unit_failed(binding, stage.index, unit.unit, code, message, retryable)
        self._exporter.look(binding)

    def exported(self, stage: HostedStage, cursor: Cursor, ticket: int, state: bytes | None, why: str) -> None:
        binding = cursor.holder
        assert isinstance(binding, Binding)
        if self.door.get(binding.session_id) is binding:
            self._exporter.took(binding, stage, ticket, state, why)

    def _unit_failed(
        self, binding: Binding, stage: int, unit: int, code: str, message: str, retryable: bool = False
    ) -> None:
        # It needs no credit, so it may overtake kept outputs: the session voids them with the unit.
        if binding.link is not None:
            binding.link.send(UnitFailed(binding.session_id, binding.fence, stage, unit, code, message, retryable))

    def _send(
        self, binding: Binding, message: Output | StagesOpened | StagesExported, frames: Sequence[bytes] = ()
    ) -> bool:
        """False: there is no room for it to wait in."""
        link = binding.link
        if link is None:
            return True  # nobody is there: the heir opens the stages again
        outbox = self._outboxes.get(link)
        if (outbox is None or not outbox.holds(binding.session_id)) and link.send(message, frames):
            return True
        if outbox is None:
            outbox = self._outboxes[link] = Outbox(self._max_kept_bytes)
        if outbox.keep(binding.session_id, message, frames):
            return True
        if isinstance(message, Output):
            self.counts.overflow()
            text = "the session does not take the output of its stages"
            self._unit_failed(binding, message.stage, message.unit, "stage_output_overflow", text)
        return False

    def _unkeep(self, binding: Binding) -> None:
        """What is kept for the session means nothing any more."""
        outbox = None if binding.link is None else self._outboxes.get(binding.link)
        if outbox is not None:
            outbox.forget(binding.session_id)

    # -- clockwork -------------------------------------------------------------------------------------

    def want_pump(self, stage: HostedStage) -> None:
        if stage.pump_wanted:
            return
        stage.pump_wanted = True
        self._to_pump.append(stage)
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Short steps run here, stage after stage, until what is left is out in threads."""
        try:
            while self._to_pump:  # grows while units are handed over
                stage = self._to_pump.popleft()
                stage.pump_wanted = False
                stage.pump()
        finally:
            # Not empty only if a pump raised: that is reported, and the others go on.
            self._pump_scheduled = bool(self._to_pump)
            if self._pump_scheduled:
                self._loop.call_soon(self._pump)

    def _look(self) -> None:
        self._check = self._loop.call_at(next_on_grid(self._loop.time(), CHECK_S), self._look)
        now = self._loop.time()
        for stage in self.stages.values():
            if not stage.hung(now):
                stage.check_deadlines(now)
            elif not self.unhealthy.done():
                # The links that go with the process tell of its units, once: a failure of each beforehand
                # would have them tried again here, and count as a second loss.
                self.unhealthy.set_result(f"a step of {stage.pipeline}/{stage.spec.name} does not end")
        self.free_orphans(now)

    def free_orphans(self, now: float) -> None:
        """Give back the slots that nobody has come back for."""
        for binding in self.door.orphans(now):
            self.counts.orphan()
            self._release(binding)
