"""One stage in virtual time: when its steps begin; and stages of one worker side by side, in real threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest
from simulation.virtual_time import VirtualLoop
from unit.stages.rig import FakeEngine, Rig

from duologue.bus.messages import Abort, Aborted, Control, Output, StagesOpened
from duologue.fence import StageFence
from duologue.model.engine import SESSION, Emission, StageEngine, StageUnit
from duologue.model.pipeline import StageSpec
from duologue.stages.cursor import Cursor, Entry
from duologue.stages.hosted import HostedStage
from duologue.stages.step import Done, Work, perform
from duologue.stages.step_loop import Steps

pytestmark = pytest.mark.unit


class TimedSteps(Steps):
    """A step takes so long, in the loop's own time."""

    def __init__(self, loop: VirtualLoop, engine: StageEngine, on_done: Callable[[Done], None], lasts_s: float) -> None:
        self._loop = loop
        self._engine = engine
        self._on_done = on_done
        self._lasts_s = lasts_s

    def run(self, work: Work) -> Done:
        return perform(self._engine, work)

    def start(self, work: Work) -> None:
        self.busy_since = self._loop.time()
        self._loop.call_later(self._lasts_s, self._finished, perform(self._engine, work))

    def _finished(self, done: Done) -> None:
        self.busy_since = None
        self._on_done(done)

    def stop(self, timeout_s: float) -> bool:
        return True


class Alone:
    """A stage of one engine, and the times at which its steps began."""

    def __init__(self, loop: VirtualLoop, sessions: int, *, lasts_s: float = 0.0, **spec: float) -> None:
        self.loop = loop
        self.engine = FakeEngine(SESSION, blocking=lasts_s > 0)
        self.begun: list[tuple[float, list[int]]] = []
        append_batch = self.engine.append_batch

        def noting(batch: list[StageUnit]) -> object:
            self.begun.append((round(loop.time(), 4), [unit.slot.index for unit in batch]))
            return append_batch(batch)

        self.engine.append_batch = noting  # type: ignore[method-assign, assignment]
        made = StageSpec("s", "x:y", "w", slots=8, **spec)  # type: ignore[arg-type]
        self.stage = HostedStage(
            "p", 0, made, self.engine, loop, self, lambda _, engine, __, done: TimedSteps(loop, engine, done, lasts_s)
        )
        opened = [self.stage.open(self, 0, b"") for _ in range(sessions)]
        self.cursors = [cursor for cursor in opened if cursor is not None]
        self._units = 0

    def append(self, session: int, at: float, *, urgent: bool = False, replay: bool = False) -> None:
        self.loop.call_at(at, self._append, session, urgent, replay)

    def _append(self, session: int, urgent: bool, replay: bool) -> None:
        self._units += 1
        cursor = self.cursors[session]
        unit = StageUnit(cursor.slot, self._units, 0, 0, 0, b"", (), replay)
        assert self.stage.append(Entry(cursor, unit, self.loop.time(), 1.0, True, urgent))

    def run(self, until: float) -> list[tuple[float, list[int]]]:
        self.loop.run_until_complete(asyncio.sleep(until - self.loop.time()))
        return self.begun

    def exported(self, stage: HostedStage, cursor: Cursor, ticket: int, state: bytes | None, why: str) -> None:
        raise AssertionError("nobody has asked")

    def want_pump(self, stage: HostedStage) -> None:
        self.loop.call_soon(stage.pump)

    def emitted(self, stage: HostedStage, cursor: Cursor, entry: Entry | None, emission: Emission) -> None:
        """Nobody waits for it."""

    def failed(
        self, stage: HostedStage, cursor: Cursor, unit: StageUnit, code: str, message: str, retryable: bool
    ) -> None:
        raise AssertionError(message)

    def opened(self, stage: HostedStage, cursor: Cursor, refused: tuple[str, str] | None) -> None:
        assert refused is None


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


def test_a_step_gathers_the_sessions_of_one_pace_and_ends_early(loop: VirtualLoop) -> None:
    alone = Alone(loop, 3, gather_ms=20)
    for turn in range(4):
        for session, phase_s in enumerate((0.0, 0.006, 0.05)):
            alone.append(session, 1 + turn * 0.08 + phase_s)
    alone.run(2)
    # The first two units of each tell its pace. Then 0 waits for 1, which ends the wait; 2 is too far from both.
    assert alone.begun[6:] == [(1.166, [0, 1]), (1.21, [2]), (1.246, [0, 1]), (1.29, [2])]


def test_a_step_waits_no_longer_than_its_window_for_one_that_does_not_come(loop: VirtualLoop) -> None:
    alone = Alone(loop, 2, gather_ms=20)
    for at in (1.0, 1.08, 1.16, 1.24):
        alone.append(0, at)
    for at in (1.01, 1.09):
        alone.append(1, at)
    alone.run(2)
    assert alone.begun[-2:] == [(1.18, [0]), (1.24, [0])]


def test_without_a_window_every_unit_goes_at_once(loop: VirtualLoop) -> None:
    alone = Alone(loop, 2)
    for turn in range(3):
        alone.append(0, 1 + turn * 0.08)
        alone.append(1, 1.001 + turn * 0.08)
    assert [at for at, _ in alone.run(2)] == [1.0, 1.001, 1.08, 1.081, 1.16, 1.161]


def test_a_replay_goes_in_the_gaps_that_live_units_leave(loop: VirtualLoop) -> None:
    alone = Alone(loop, 3, lasts_s=0.03, max_batch=1)
    alone.engine.max_batch = 1
    for _ in range(6):
        alone.append(2, 1.0, replay=True)
    for turn in range(3):
        alone.append(0, 1.01 + turn * 0.06)
    alone.append(1, 1.02, urgent=True)
    order = [batch[0] for _, batch in alone.run(2)]
    assert order == [2, 1, 0, 0, 2, 0, 2, 2, 2, 2]


class Pair:
    """A worker of two stages that block, on the in-memory bus."""

    async def __aenter__(self) -> Pair:
        self.rig = await Rig(blocking=True).start()
        self.shard = await self.rig.shard()
        self.shard.open("a")
        self.shard.open("b")
        await self.shard.expect(StagesOpened, 2)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.rig.close()


async def test_a_stage_goes_on_while_another_one_of_its_worker_is_in_a_long_step() -> None:
    async with Pair() as pair:
        pair.shard.append("a", 0, b"hold")
        await asyncio.to_thread(pair.rig.engines[0].held.wait, 10)
        pair.shard.append("b", 0, b"block", stage=1)
        (output,) = await pair.shard.expect(Output)
        assert (output.session_id, output.stage) == ("b", 1)
        assert not pair.rig.engines[0].released.is_set() and pair.rig.stages[0].steps.busy_since is not None
        for engine in pair.rig.engines:
            engine.released.set()
        await pair.shard.expect(Output)
        assert len(pair.rig.engines[0].threads | pair.rig.engines[1].threads) == 2


async def test_controls_and_aborts_overtake_the_units_that_wait() -> None:
    async with Pair() as pair:
        engine, shard = pair.rig.engines[0], pair.shard
        shard.append("a", 0, b"hold")
        await asyncio.to_thread(engine.held.wait, 10)
        for unit in range(1, 4):
            shard.append("a", unit)
            shard.append("b", unit)
        shard.send(Control("b", StageFence(1, 1, 0), 0, "update"), b"now")
        shard.send(Abort("a", StageFence(1, 1, 1)))
        (aborted,) = await shard.expect(Aborted)
        assert (aborted.consumed, aborted.dropped) == ((0,), (1, 2, 3))
        engine.released.set()
        await shard.expect(Output, 3)
        assert engine.batches == [[0], [1], [2], [3]]
        done = engine.calls[2:]
        assert [call.split()[0] for call in done] == ["control", "cancel"], "both went before the first waiting unit"


async def test_a_replay_stays_one_in_every_stage_of_the_worker() -> None:
    async with Pair() as pair:
        seen: list[bool] = []

        def look(batch: Sequence[StageUnit]) -> bool:
            seen.extend(unit.replay for unit in batch)
            return False

        for engine in pair.rig.engines:
            engine.blocks = look  # type: ignore[method-assign]
        pair.shard.append("a", -2, replay=True)
        pair.shard.append("a", 5)
        await pair.shard.expect(Output, 2)
        assert sorted(seen) == [False, False, True, True]
        assert [stage.counts.replayed for stage in pair.rig.stages] == [1, 1]
