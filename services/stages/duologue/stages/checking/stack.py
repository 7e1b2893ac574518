"""The real engines of a pipeline, driven by one thread, without a bus. What a worker does, done in plain sight.

Rule 1. One step at a time: of each stage in order, at most one unit of each session, at most `max_batch`; then
        `read`, but only if the engine has called `wake`.
Rule 2. Whatever an engine does against the contract is written down in `broken`, and goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Condition

from duologue.model.engine import NEXT, NO_UNIT, SESSION, Emission, Failure, Slot, StageEngine, StageUnit
from duologue.model.pipeline import PipelineSpec
from duologue.stages.loading import build
from duologue.stages.slots import SlotTable

MAX_BROKEN = 50
"""Lines that are kept: the first say what is wrong."""


class Given:
    """One append to one stage. `last`: nothing more of its unit comes from the stage before."""

    __slots__ = ("last", "unit")

    def __init__(self, unit: StageUnit, last: bool) -> None:
        self.unit, self.last = unit, last


class Seat:
    """One session in all stages. `deliver` and `fail` are told what reaches the session, and the stage it is from."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self.epoch = 0
        self.waiting: list[deque[Given]] = [deque() for _ in slots]
        self.started: list[list[Given]] = [[] for _ in slots]
        self.void: set[int] = set()
        """Units of before the last cancel."""
        self.steps_since_cancel = 0
        self.open = True
        self.deliver: Callable[[int, Emission], None] = lambda stage, emission: None
        self.fail: Callable[[int, int, Failure], None] = lambda stage, unit, failure: None

    @property
    def under_way(self) -> bool:
        return any(self.waiting) or any(self.started)


class Stack:
    """See the module. `stop_steps`: how long after a cancel an engine may still make something of old units.
    `linger_s`: how long an engine must be quiet that answers units which have landed already."""

    def __init__(self, pipeline: PipelineSpec, *, patience_s: float, stop_steps: int, linger_s: float = 0.0) -> None:
        self.pipeline = pipeline
        self.names = [stage.name for stage in pipeline.stages]
        self.broken: list[str] = []
        self.most = 0
        """The largest batch of a step so far."""
        self._patience_s, self._stop_steps, self._linger_s = patience_s, stop_steps, linger_s
        self._changed = Condition()
        self._woken: set[int] = set()
        self._wakes = False
        """An engine has called `wake` since all are warm, or is expected to."""
        self._tables = [SlotTable(stage.slots) for stage in pipeline.stages]
        self._seats: list[dict[Slot, Seat]] = [{} for _ in pipeline.stages]
        self.engines: list[StageEngine] = []
        for index in range(len(pipeline.stages)):
            engine = build(pipeline, index)
            engine.wake = partial(self._wake, index)
            engine.warm_up()
            self.engines.append(engine)
        self._wakes = linger_s > 0

    def shut_down(self) -> None:
        for engine in self.engines:
            engine.shut_down()

    # -- sessions --------------------------------------------------------------------------------------

    def open(self, configs: Sequence[bytes]) -> Seat:
        """Raises StageRefused, with nothing held; or whatever else the engine raises."""
        slots: list[Slot] = []
        try:
            for index, engine in enumerate(self.engines):
                slot = self._tables[index].take()
                if slot is None:
                    raise AssertionError(f"the check opens more sessions than stage {self.names[index]} has slots")
                slots.append(slot)
                engine.open(slot, configs[index])
        except BaseException:
            for index, slot in enumerate(slots):
                self._tables[index].free(slot)
                self.engines[index].close(slot)
            raise
        seat = Seat(slots)
        for index, slot in enumerate(slots):
            self._seats[index][slot] = seat
        return seat

    def close(self, seat: Seat) -> None:
        """May be called again: an engine's `close` is idempotent."""
        seat.open = False
        for index, slot in enumerate(seat.slots):
            self._tables[index].free(slot)
            self._seats[index].pop(slot, None)
            seat.waiting[index].clear()
            seat.started[index].clear()
            self.engines[index].close(slot)

    def export(self, seat: Seat) -> dict[int, bytes] | None:
        """What the stages that export hold of this session, by stage; None: one of them cannot tell now."""
        states: dict[int, bytes] = {}
        for index, engine in enumerate(self.engines):
            state = engine.export_state(seat.slots[index]) if engine.exports else b""
            if state is None:
                return None
            if engine.exports:
                states[index] = state
        return states

    def move(self, seat: Seat, states: Mapping[int, bytes]) -> None:
        """Into other slots, as another worker's engine would take them."""
        slots = list(seat.slots)
        for index, state in states.items():
            old, table, engine = slots[index], self._tables[index], self.engines[index]
            fresh = table.take()
            if fresh is None:
                raise AssertionError(f"stage {self.names[index]} has no slot besides the one that is left")
            engine.import_state(fresh, state)
            self._seats[index][fresh] = self._seats[index].pop(old)
            table.free(old)
            engine.close(old)
            slots[index] = fresh
        seat.slots = tuple(slots)

    def cancel(self, seat: Seat, epoch: int) -> None:
        """Orders go before units: what waits is forgotten, and what the engines have is void."""
        seat.epoch = epoch
        for index, slot in enumerate(seat.slots):
            seat.void.update(given.unit.unit for given in (*seat.waiting[index], *seat.started[index]))
            seat.waiting[index].clear()
            seat.started[index].clear()
            self.engines[index].cancel(slot, epoch)
        seat.steps_since_cancel = 0

    def give(self, seat: Seat, stage: int, unit: StageUnit, last: bool = True) -> None:
        seat.waiting[stage].append(Given(unit, last))

    # -- steps -----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step of every stage. False: there was nothing to do."""
        did = [self.step_of(index) for index in range(len(self.engines))]
        return any(did)

    def step_of(self, index: int) -> bool:
        """One step of this stage. False: there was nothing to do."""
        batch = self._take(index)
        with self._changed:
            read = index in self._woken
            self._woken.discard(index)
        if not batch and not read:
            return False
        emissions: list[Emission] = []
        if batch:
            emissions += self._append(index, batch)
        if read:
            emissions += self.engines[index].read()
        for seat in list(self._seats[index].values()):
            seat.steps_since_cancel += 1
        for emission in emissions:
            self._leave(index, emission)
        return True

    def settle(self, seats: Sequence[Seat]) -> None:
        """Step until nothing of these sessions is under way. An engine that neither answers nor wakes is broken."""
        while any(seat.under_way for seat in seats):
            if self.step() or self.woken_within(self._patience_s):
                continue
            for seat in seats:
                self._give_up(seat)
        if self._linger_s:
            self.quiet(self._linger_s)

    def quiet(self, seconds: float) -> None:
        """Step as long as an engine wakes within so long; those that never wake have said it all in their steps."""
        until = time.monotonic() + self._patience_s
        while time.monotonic() < until and (self.step() or (self._wakes and self.woken_within(seconds))):
            pass

    def _take(self, index: int) -> list[tuple[Seat, Given]]:
        ready = [seat for seat in self._seats[index].values() if seat.waiting[index]]
        batch = []
        for seat in ready[: self.engines[index].max_batch]:
            given = seat.waiting[index].popleft()
            seat.started[index].append(given)
            batch.append((seat, given))
            # Who has had a turn goes to the end of the line.
            seats = self._seats[index]
            seats[seat.slots[index]] = seats.pop(seat.slots[index])
        self.most = max(self.most, len(batch))
        return batch

    def _append(self, index: int, batch: Sequence[tuple[Seat, Given]]) -> Sequence[Emission]:
        try:
            return self.engines[index].append_batch([given.unit for _, given in batch])
        except Exception as error:
            failure = Failure("engine_error", f"{type(error).__name__}: {error}")
            for seat, given in batch:
                if given in seat.started[index]:
                    seat.started[index].remove(given)
                seat.fail(index, given.unit.unit, failure)
            return ()

    def _leave(self, index: int, emission: Emission) -> None:
        seat = self._seats[index].get(emission.slot)
        if seat is None:
            self._break(index, f"made something for {emission.slot}, which is closed")
            return
        given = next((one for one in seat.started[index] if one.unit.unit == emission.unit), None)
        if given is None and emission.unit != NO_UNIT:
            self._stray(index, seat, emission)
            return
        if given is not None:
            if emission.turn_id != given.unit.turn_id:
                self._break(
                    index, f"unit {emission.unit} has turn {given.unit.turn_id}, and left as {emission.turn_id}"
                )
            if emission.last or emission.failure is not None:
                seat.started[index].remove(given)
        if emission.failure is not None:
            if not emission.failure.code:
                self._break(index, f"unit {emission.unit} failed without a code")
            seat.fail(index, emission.unit, emission.failure)
            return
        to = index + 1 if emission.to == NEXT else emission.to
        if to == SESSION:
            seat.deliver(index, emission)
        elif 0 <= to < len(self.engines) and to != index:
            self._relay(seat, to, given, emission)
        else:
            self._break(index, f"unit {emission.unit} goes to stage {emission.to}, and there is none")

    def _relay(self, seat: Seat, to: int, given: Given | None, emission: Emission) -> None:
        attempt, replay, whole = (0, False, True)
        if given is not None:
            attempt, replay, whole = given.unit.attempt, given.unit.replay, given.last
        frames = tuple(bytes(frame) for frame in emission.frames)
        unit = StageUnit(
            seat.slots[to], emission.unit, emission.turn_id, seat.epoch, attempt, emission.head, frames, replay
        )
        self.give(seat, to, unit, emission.last and whole)

    def _stray(self, index: int, seat: Seat, emission: Emission) -> None:
        if emission.unit not in seat.void:
            self._break(index, f"unit {emission.unit} came once more, after its last")
        elif seat.steps_since_cancel > self._stop_steps + 1:
            self._break(index, f"unit {emission.unit} came {seat.steps_since_cancel} steps after it was cancelled")

    def _give_up(self, seat: Seat) -> None:
        for index, started in enumerate(seat.started):
            for given in [*started, *seat.waiting[index]]:
                self._break(index, f"unit {given.unit.unit} was never answered, and the engine did not call wake")
            started.clear()
            seat.waiting[index].clear()

    def _break(self, index: int, what: str) -> None:
        if len(self.broken) < MAX_BROKEN:
            self.broken.append(f"{self.names[index]}: {what}")

    def _wake(self, index: int) -> None:
        """From any thread."""
        with self._changed:
            self._woken.add(index)
            self._wakes = True
            self._changed.notify_all()

    def woken_within(self, seconds: float) -> bool:
        """Wait until an engine calls `wake`, at most so long."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._woken), seconds)
