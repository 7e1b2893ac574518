"""A cancel reaches the engines. Session, shard and workers are the product's own; the engines are watched.

The fault that the test is about: a session that knows itself by one name and tells the workers another, so that the
abort means nobody. The workers below that play it must be found by the same check.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from unit.session.core.session_world import sound

from duologue.client import SessionConfig
from duologue.client.presets import loopback
from duologue.inline import DuplexOmni, DuplexSessionHandle
from duologue.model.engine import Emission, StageUnit
from duologue.models.loopback.engine import LoopbackStage
from duologue.session.core import stages
from duologue.session.core.commands import UnitsAborted
from duologue.session.core.context import SessionContext
from duologue.stages.door import Door
from duologue.stages.hosted import HostedStage
from duologue.stages.worker import StageWorker

pytestmark = [pytest.mark.unit, pytest.mark.timeout(180)]

CANCELS, UNITS, STAGES, WORKERS = 30, 16, 4, 2
UNIT_MS = 80


class Watch:
    """What the engines were given and what the session was told, in the order of their happening."""

    def __init__(self, patch: pytest.MonkeyPatch, patience_s: float = 30.0) -> None:
        self.patience_s = patience_s
        self.log: list[tuple[str, int, int]] = []
        """(`step`, epoch, stage) of one unit in one engine; (`account`, epoch, number of units) of one worker."""
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        step, account = LoopbackStage.append_batch, stages.aborted

        def stepped(engine: LoopbackStage, batch: Sequence[StageUnit]) -> Sequence[Emission]:
            for unit in batch:
                self._note("step", unit.epoch, engine.stage)
            return step(engine, batch)

        def accounted(ctx: SessionContext, fact: UnitsAborted) -> None:
            self._note("account", fact.fence.epoch, len(fact.consumed) + len(fact.dropped))
            account(ctx, fact)

        patch.setattr(LoopbackStage, "append_batch", stepped)
        patch.setattr(stages, "aborted", accounted)

    def _note(self, kind: str, epoch: int, what: int) -> None:
        self.log.append((kind, epoch, what))
        self._loop.call_soon_threadsafe(self._news.set)

    def steps(self, epoch: int) -> int:
        """Of the first stage."""
        return self.log.count(("step", epoch, 0))

    def accounts(self, epoch: int) -> int:
        return sum(kind == "account" and of == epoch for kind, of, _ in self.log)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(self.patience_s):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def late(self) -> Counter[int]:
        """By epoch: steps that began after both workers had told that it is void."""
        told: Counter[int] = Counter()
        found: Counter[int] = Counter()
        for kind, epoch, _ in self.log:
            if kind == "account":
                told[epoch - 1] += 1
            elif told[epoch] == WORKERS:
                found[epoch] += 1
        return found


async def cancel_thirty_times(watch: Watch, chance: random.Random) -> None:
    """Turns of 16 units, each cancelled after another number of steps."""
    script: list[dict[str, Any]] = [{"speak": {"units": 4000, "text": "on and on"}}]
    async with DuplexOmni("loopback") as omni:
        session = await omni.open_session(turn_based(script))
        reader = asyncio.create_task(read(session))
        for epoch in range(CANCELS):
            await session.append_audio(sound(UNIT_MS * UNITS))
            await session.commit(create_response=True)
            steps = chance.randrange(1, UNITS - 3)  # a cancel does not wait for a turn that is still being converted
            await watch.until(lambda epoch=epoch, steps=steps: watch.steps(epoch) >= steps)  # type: ignore[misc]
            await session.cancel_response()
            await watch.until(lambda epoch=epoch: watch.accounts(epoch + 1) == WORKERS)  # type: ignore[misc]
        await session.append_audio(sound(UNIT_MS * UNITS))
        await session.commit(create_response=True)
        await watch.until(lambda: watch.steps(CANCELS) >= UNITS)  # whatever was still waiting has had its turn
        await session.close()
        await reader
    for epoch, late in watch.late().items():
        # What an engine was given before may be in the hands of each of the four: no more than that.
        assert late <= STAGES, f"{late} steps for a cancelled turn (epoch {epoch})"


def turn_based(script: list[dict[str, Any]]) -> SessionConfig:
    return msgspec.structs.replace(loopback(script, stage_ms=[4, 1, 1, 1]), auto_response=False)


async def read(session: DuplexSessionHandle) -> None:
    async for event in session.events():
        assert event.type != "error", event


async def test_bar_08_a_cancel_stops_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both workers tell of every abort by their own units, and no engine goes on with them."""
    watch = Watch(monkeypatch)
    await cancel_thirty_times(watch, random.Random(8))
    assert sum(units for kind, _, units in watch.log if kind == "account") > CANCELS, "aborts that meant something"


def drops_aborts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StageWorker, "_abort", lambda *_: None)


def knows_nobody_of_that_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Door, "advance", lambda *_: None)


def answers_and_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostedStage, "cancel", lambda *_: ([], []))


@pytest.mark.parametrize("fake", [drops_aborts, knows_nobody_of_that_name, answers_and_goes_on])
async def test_bar_08_a_worker_that_does_not_stop_is_found(
    fake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        await cancel_thirty_times(Watch(monkeypatch, patience_s=2.0), random.Random(8))
