"""One stage of one pipeline in this worker: its engine, its places, its queue, and the pump between them.

Rule 1. Only the link thread is here. The engine runs in the step loop's thread, or here when it is idle and
        says that the step is short.
Rule 2. Incarnations are compared after each step, before anything leaves.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from duologue.model.engine import NO_UNIT, Emission, Slot, StageEngine, StageUnit
from duologue.model.pipeline import StageSpec
from duologue.stages.batching import ReadyQueue
from duologue.stages.counts import StageCounts
from duologue.stages.cursor import Cursor, Entry
from duologue.stages.gathering import Gathering
from duologue.stages.slots import SlotTable
from duologue.stages.step import Done, Kind, Order, Work
from duologue.stages.step_loop import MakeSteps, StepLoop

_log = logging.getLogger("duologue.stages")


class StageSink(Protocol):
    """Where a stage's results go."""

    def emitted(self, stage: HostedStage, cursor: Cursor, entry: Entry | None, emission: Emission) -> None:
        """`entry` is the unit that it is of; None: it was made between appends."""

    def failed(
        self, stage: HostedStage, cursor: Cursor, unit: StageUnit, code: str, message: str, retryable: bool
    ) -> None: ...

    def opened(self, stage: HostedStage, cursor: Cursor, refused: tuple[str, str] | None) -> None:
        """The engine has taken the slot, or says why not."""

    def exported(self, stage: HostedStage, cursor: Cursor, ticket: int, state: bytes | None, why: str) -> None:
        """What the engine gave of a slot, or why it did not. Nothing of either: not now."""

    def want_pump(self, stage: HostedStage) -> None:
        """Have `pump` called before the link thread waits again."""


class HostedStage:
    """See the module."""

    def __init__(
        self,
        pipeline: str,
        index: int,
        spec: StageSpec,
        engine: StageEngine,
        loop: asyncio.AbstractEventLoop,
        sink: StageSink,
        make_steps: MakeSteps = StepLoop,
    ) -> None:
        self.pipeline = pipeline
        self.index = index
        self.spec = spec
        self.engine = engine
        self.deadline_s = spec.deadline_ms / 1000
        self.slots = SlotTable(spec.slots)
        self.counts = StageCounts(pipeline, spec.name)
        self.steps = make_steps(f"{pipeline}/{spec.name}", engine, loop, self._done)
        self.pump_wanted = False
        self._loop = loop
        self._sink = sink
        self._cursors: dict[int, Cursor] = {}
        self._ready = ReadyQueue()
        self._gathering = Gathering(spec.gather_ms / 1000)
        self._gather_timer: asyncio.TimerHandle | None = None
        self._orders: list[Order] = []
        self._read = False
        self._lag_s = 0.0
        self._patience_s = self.deadline_s
        self._state_bytes = self._kv_tokens = 0
        engine.wake = self._wake

    # -- what the worker asks --------------------------------------------------------------------------

    def open(self, holder: object, epoch: int, config: bytes, *, imports: bool = False) -> Cursor | None:
        """Take a place and have the engine open it; None: no place is left. `imports`: it is the state of another."""
        slot = self.slots.take()
        if slot is None:
            return None
        cursor = Cursor(slot, holder, epoch)
        self._cursors[slot.index] = cursor
        self._order(Order(Kind.IMPORT if imports else Kind.OPEN, slot, cursor, config))
        return cursor

    def export(self, cursor: Cursor, ticket: int) -> None:
        """Have the engine tell what it holds of this slot: `StageSink.exported`."""
        self._order(Order(Kind.EXPORT, cursor.slot, cursor, epoch=ticket))

    def append(self, entry: Entry) -> bool:
        """Let a unit wait for a step. False: too many of its session wait already."""
        if not self._ready.push(entry):
            return False
        if self._gathering.window_s:
            entry.cursor.arrived(entry)
        if not self.pump_wanted:
            self._sink.want_pump(self)
        return True

    def cancel(self, cursor: Cursor, epoch: int) -> tuple[list[int], list[int]]:
        """Units before `epoch` are void; the numbers of those consumed, and of those dropped unread."""
        self._ready.forget(cursor)
        self._order(Order(Kind.CANCEL, cursor.slot, cursor, epoch=epoch))
        return cursor.abort()

    def control(self, cursor: Cursor, kind: str, body: bytes) -> None:
        self._order(Order(Kind.CONTROL, cursor.slot, cursor, body, name=kind))

    def close(self, cursor: Cursor) -> None:
        """The place is free at once; the engine frees what belongs to it before it opens it again."""
        if not self.slots.free(cursor.slot):
            return
        self._ready.forget(cursor)
        cursor.abort()
        del self._cursors[cursor.slot.index]
        self._order(Order(Kind.CLOSE, cursor.slot))

    def drop_waiting(self, cursor: Cursor) -> None:
        """Nobody wants what waits here; what is in the engine ends as it may."""
        self._ready.forget(cursor)
        cursor.waiting.clear()

    def check_deadlines(self, now: float) -> None:
        """Fail what is overdue. See `hung` for a step that never ends."""
        lag = 0.0
        for cursor in list(self._cursors.values()):
            if not cursor.started and not cursor.waiting:
                continue
            for entry in cursor.overdue(now):
                self._fail(entry, "stage_timeout", f"stage {self.spec.name} took too long", retryable=True)
            if not cursor.waiting:
                self._ready.forget(cursor)
            else:
                lag = max(lag, now - cursor.waiting[0].arrived)
        self._lag_s = lag

    def hung(self, now: float) -> bool:
        """The step that is out has passed every deadline in it: its thread may never come back."""
        return self.steps.busy_since is not None and now - self.steps.busy_since > self._patience_s

    def show(self) -> None:
        """Set the gauges, for a scrape. The engine is asked only while it is idle: a step may be out."""
        if self.steps.busy_since is None:
            usage = self.engine.usage()
            self._state_bytes, self._kv_tokens = usage.state_bytes, usage.kv_tokens
        self.counts.show(self.slots.used, self.slots.total, self._state_bytes, self._kv_tokens)

    @property
    def unit_lag_s(self) -> float:
        """How long the oldest waiting unit has waited, at the last check."""
        return self._lag_s

    # -- the pump --------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Run steps until there is nothing to do or a step is out."""
        while self.steps.busy_since is None:
            now = self._loop.time()
            batch = [] if self._gathers(now) else self._ready.take(self.engine.max_batch, now)
            if not batch and not self._orders and not self._read:
                return
            units = [entry.unit for entry in batch]
            work = Work(self._orders, batch, units, self._read)
            self._read = False
            if self._orders or not self._is_short(units):
                self._orders = []
                self._patience_s = max([self.deadline_s, *(entry.deadline_s for entry in batch)])
                self.steps.start(work)
                return
            self._settle(self.steps.run(work))

    def _gathers(self, now: float) -> bool:
        """The next step waits for sessions that are about to have a unit; `pump` is called again."""
        if not self._gathering.window_s or not self._ready:
            return False
        at = self._gathering.begins_at(self._ready, self._cursors.values(), self.engine.max_batch, now)
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        if at <= now:
            return False
        self._gather_timer = self._loop.call_at(at, self._sink.want_pump, self)
        return True

    def _is_short(self, units: list[StageUnit]) -> bool:
        try:
            return not units or not self.engine.blocks(units)
        except Exception:
            # The step itself tells what is wrong, and fails its units.
            _log.exception("%s/%s cannot say whether a step is short", self.pipeline, self.spec.name)
            return False

    def _order(self, order: Order) -> None:
        self._orders.append(order)
        self._sink.want_pump(self)

    def _wake(self) -> None:
        """Called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._want_read)
        except RuntimeError:
            return  # the loop is closed: the process is ending

    def _want_read(self) -> None:
        self._read = True
        self._sink.want_pump(self)

    def _done(self, done: Done) -> None:
        """A step of the thread has come back."""
        self._settle(done)
        self._sink.want_pump(self)

    def _settle(self, done: Done) -> None:
        work = done.work
        for place, order in enumerate(work.orders):
            self._answer(order, done.refused.get(place), done.exported.get(place))
        batch = work.batch
        if batch:
            self.counts.step([entry.since - entry.arrived for entry in batch], done.compute_s)
            for entry in batch:
                if entry.unit.replay:
                    self.counts.replayed += 1
        if done.error:
            for entry in work.batch:
                self._fail_started(entry, done.error)
        for emission in done.emissions:
            self._leave(emission)

    def _answer(self, order: Order, refused: Exception | None, state: bytes | None) -> None:
        cursor = order.cursor
        if cursor is None or not self.slots.is_current(order.slot):
            return
        if order.kind is Kind.CANCEL:
            cursor.engine_epoch = max(cursor.engine_epoch, order.epoch)
        elif order.kind in (Kind.OPEN, Kind.IMPORT):
            code = getattr(refused, "code", "engine_error")
            self._sink.opened(self, cursor, None if refused is None else (code, str(refused)))
        elif order.kind is Kind.EXPORT:
            self._sink.exported(self, cursor, order.epoch, state, "" if refused is None else str(refused))

    def _leave(self, emission: Emission) -> None:
        slot: Slot = emission.slot
        cursor = self._cursors.get(slot.index)
        if cursor is None or cursor.slot.incarnation != slot.incarnation:
            self.counts.drop("incarnation")
            return
        entry = cursor.find(emission.unit) if cursor.started else None
        if entry is None and emission.unit != NO_UNIT:
            self.counts.drop("stray")  # aborted, failed or timed out since
            return
        if entry is not None and (emission.last or emission.failure is not None):
            cursor.finish(entry)
        self._sink.emitted(self, cursor, entry, emission)

    def _fail_started(self, entry: Entry, message: str) -> None:
        cursor = entry.cursor
        if entry not in cursor.started or not self.slots.is_current(cursor.slot):
            self.counts.drop("stray")
            return
        cursor.finish(entry)
        self._fail(entry, "engine_error", message)

    def _fail(self, entry: Entry, code: str, message: str, retryable: bool = False) -> None:
        self._sink.failed(self, entry.cursor, entry.unit, code, message, retryable)
