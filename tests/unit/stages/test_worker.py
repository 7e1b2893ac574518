"""A worker on the in-memory bus: who may have a slot, what becomes of units, what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from unit.stages.rig import FENCE, NoCredit, Rig, Shard, until

from duologue.bus.messages import (
    Abort,
    Aborted,
    CloseStages,
    Control,
    Output,
    StagesClosed,
    StagesOpened,
    StagesRefused,
    UnitFailed,
)
from duologue.fence import StageFence
from duologue.model.engine import NO_UNIT, SESSION, Emission, Slot
from duologue.stages.cursor import MAX_WAITING

pytestmark = pytest.mark.unit

RigMaker = Callable[..., Any]


@pytest.fixture
async def rigs() -> AsyncIterator[RigMaker]:
    made: list[Rig] = []

    async def make(**options: Any) -> tuple[Rig, Shard]:
        rig = await Rig(**options).start()
        made.append(rig)
        return rig, await rig.shard()

    yield make
    for rig in made:
        await rig.close()


async def opened(rigs: RigMaker, *sessions: str, **options: Any) -> tuple[Rig, Shard]:
    rig, shard = await rigs(**options)
    for session in sessions:
        shard.open(session)
    await shard.expect(StagesOpened, len(sessions))
    return rig, shard


async def test_a_unit_goes_through_both_stages_and_comes_out(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    shard.append("a", 0, b"hello")
    (output,) = await shard.expect(Output)
    assert (output.session_id, output.fence, output.stage, output.to_stage) == ("a", FENCE, 1, -1)
    assert (output.unit, output.last) == (0, True)
    assert [engine.batches for engine in rig.engines] == [[[0]], [[0]]]


async def test_short_steps_run_on_the_link_thread_and_long_ones_on_their_own(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    shard.append("a", 0, b"")
    await shard.expect(Output)
    assert rig.engines[0].threads == {"MainThread"}
    shard.append("a", 1, b"block")
    await shard.expect(Output)
    assert rig.engines[0].threads == {"MainThread", "p/stage0"}


async def test_units_for_a_stage_elsewhere_go_by_the_shard(rigs: RigMaker) -> None:
    _, shard = await opened(rigs, "a", last_to=2)
    shard.append("a", 3, b"data")
    (output,) = await shard.expect(Output)
    assert (output.stage, output.to_stage, output.unit) == (1, 2, 3)


async def test_sessions_share_a_step_and_one_session_never_has_two_units_in_it(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a", "b", "c", max_batch=2)
    for unit in range(2):
        for session in "abc":
            shard.append(session, unit)
    outputs = await shard.expect(Output, 6)
    assert rig.engines[0].batches == [[0, 0], [0, 1], [1, 1]]
    for session in "abc":
        assert [output.unit for output in outputs if output.session_id == session] == [0, 1]


async def test_a_unit_of_another_fence_is_dropped(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    for fence in (StageFence(0, 1, 0), StageFence(1, 0, 0), StageFence(1, 1, 1), StageFence(2, 1, 0)):
        shard.append("a", 0, fence=fence)
    shard.append("a", 1)
    assert [output.unit for output in await shard.expect(Output)] == [1]
    assert rig.worker.counts.stale_messages == 4
    assert rig.engines[0].batches == [[1]]


async def test_a_unit_of_an_unknown_session_is_told(rigs: RigMaker) -> None:
    _, shard = await opened(rigs, "a")
    shard.append("b", 5)
    (failed,) = await shard.expect(UnitFailed)
    assert (failed.session_id, failed.unit, failed.code) == ("b", 5, "stage_not_open")


async def test_a_failing_unit_hurts_nobody_else(rigs: RigMaker) -> None:
    _, shard = await opened(rigs, "a", "b")
    shard.append("a", 0, b"fail")
    shard.append("b", 0, b"fine")
    (failed,) = await shard.expect(UnitFailed)
    assert (failed.session_id, failed.code, failed.message, failed.stage) == (
        "a",
        "engine_error",
        "as told",
        0,
    )
    assert [output.session_id for output in await shard.expect(Output)] == ["b"]


async def test_a_step_that_raises_fails_its_units_and_the_worker_goes_on(rigs: RigMaker) -> None:
    _, shard = await opened(rigs, "a", "b")
    shard.append("a", 0, b"raise")
    shard.append("b", 0, b"fine")
    failures = await shard.expect(UnitFailed, 2)
    assert {(failed.session_id, failed.code) for failed in failures} == {
        ("a", "engine_error"),
        ("b", "engine_error"),
    }
    assert all("a bug" in failed.message for failed in failures)
    shard.append("a", 1)
    assert (await shard.expect(Output))[0].unit == 1


async def test_slots_are_given_until_there_are_none(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a", "b", slots=2)
    shard.open("c")
    (refused,) = await shard.expect(StagesRefused)
    assert (refused.session_id, refused.code) == ("c", "resource_exhausted")
    assert [stage.slots.used for stage in rig.stages] == [2, 2]
    shard.send(CloseStages("a", FENCE))
    await shard.expect(StagesClosed)
    shard.open("c")
    await shard.expect(StagesOpened)


@pytest.mark.parametrize(("config", "code"), [(b"refuse", "context_exhausted"), (b"raise", "engine_error")])
async def test_an_engine_that_refuses_gives_everything_back(rigs: RigMaker, config: bytes, code: str) -> None:
    rig, shard = await rigs()
    shard.open("a", FENCE, b"", config)
    (refused,) = await shard.expect(StagesRefused)
    assert refused.code == code
    assert [stage.slots.used for stage in rig.stages] == [0, 0]
    shard.open("a", StageFence(1, 2, 0))
    await shard.expect(StagesOpened)


async def test_a_stage_that_is_not_here_is_refused(rigs: RigMaker) -> None:
    _, shard = await rigs()
    shard.open("a", stages=(0, 5))
    assert (await shard.expect(StagesRefused))[0].code == "unknown_stage"


async def test_opening_again_is_confirmed_again_and_takes_nothing(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    shard.open("a")
    await shard.expect(StagesOpened)
    assert rig.engines[0].calls == ["open 0.1"]


async def test_a_higher_owner_or_binding_replaces_and_a_lower_one_is_refused(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    heir = await rig.shard("s2", "s-2")
    for claimant, fence in ((shard, StageFence(1, 2, 0)), (heir, StageFence(2, 0, 4))):
        claimant.open("a", fence)
        assert (await claimant.expect(StagesOpened))[0].fence == fence
        assert rig.stages[0].slots.used == 1
    shard.open("a", StageFence(1, 9, 0))
    assert (await shard.expect(StagesRefused))[0].code == "stale_fence"
    shard.send(CloseStages("a", StageFence(1, 9, 0)))
    await shard.expect(StagesClosed)
    heir.append("a", 0, fence=StageFence(2, 0, 4))
    assert (await heir.expect(Output))[0].fence == StageFence(2, 0, 4)


async def test_what_a_step_made_for_a_former_holder_goes_nowhere(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a", slots=1)
    engine = rig.engines[0]
    shard.append("a", 0, b"hold")
    await asyncio.to_thread(engine.held.wait, 5)
    shard.send(CloseStages("a", FENCE))
    await shard.expect(StagesClosed)
    shard.open("b")
    await until(lambda: rig.worker.door.get("b") is not None)
    engine.ready.append(Emission(Slot(0, 1), SESSION, NO_UNIT, 0, b"of the former"))
    engine.released.set()
    await shard.expect(StagesOpened)
    shard.append("b", 0, b"mine")
    assert [(output.session_id, output.unit) for output in await shard.expect(Output)] == [("b", 0)]
    assert rig.stages[0].counts.stale == {"incarnation": 2}
    assert engine.calls == ["open 0.1", "close 0.1", "open 0.2"]


async def test_an_abort_tells_consumed_from_dropped_and_nothing_old_comes_out(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    engine = rig.engines[0]
    shard.append("a", 0, b"quick")
    await shard.expect(Output)
    shard.append("a", 1, b"hold")
    await asyncio.to_thread(engine.held.wait, 5)
    for unit in (2, 3):
        shard.append("a", unit, b"old")
    moved = StageFence(1, 1, 1)
    shard.send(Abort("a", moved))
    (aborted,) = await shard.expect(Aborted)
    assert (aborted.fence, aborted.consumed, aborted.dropped) == (moved, (0, 1), (2, 3))
    shard.append("a", 2, b"new", moved)
    engine.released.set()
    (output,) = await shard.expect(Output)
    assert (output.unit, output.fence) == (2, moved)
    assert rig.stages[0].counts.stale == {"stray": 1}
    assert engine.batches == [[0], [1], [2]]
    assert engine.calls == ["open 0.1", "cancel 0.1 1"]


async def test_a_unit_that_waits_in_a_later_stage_is_consumed(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    shard.append("a", 0, b"hold", stage=1)
    await asyncio.to_thread(rig.engines[1].held.wait, 5)
    shard.append("a", 1, b"through the first")
    shard.append("a", 2, b"relayed", stage=1)
    await until(lambda: bool(rig.engines[0].batches))
    shard.send(Abort("a", StageFence(1, 1, 1)))
    (aborted,) = await shard.expect(Aborted)
    assert (set(aborted.consumed), aborted.dropped) == ({0, 1, 2}, ())


@pytest.mark.parametrize("fence", [FENCE, StageFence(1, 2, 5), StageFence(0, 1, 5)])
async def test_an_abort_that_moves_nothing_is_answered_and_aborts_nothing(rigs: RigMaker, fence: StageFence) -> None:
    _, shard = await opened(rigs, "a")
    shard.send(Abort("a", fence))
    shard.send(Abort("nobody", fence))
    for aborted in await shard.expect(Aborted, 2):
        assert (aborted.consumed, aborted.dropped) == ((), ())
    shard.append("a", 0)
    await shard.expect(Output)


async def test_what_is_made_between_appends_is_read_when_woken(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a", "b")
    await asyncio.to_thread(rig.engines[1].say, Slot(1, 2), b"by the way")
    (output,) = await shard.expect(Output)
    assert (output.session_id, output.unit, output.to_stage) == ("b", -1, -1)


async def test_what_was_made_before_the_engine_knew_of_a_cancellation_is_dropped(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    engine = rig.engines[1]
    shard.append("a", 0, b"hold", stage=1)
    await asyncio.to_thread(engine.held.wait, 5)
    engine.ready.append(Emission(Slot(0, 1), SESSION, NO_UNIT, 0, b"too late"))
    shard.send(Abort("a", StageFence(1, 1, 1)))
    await shard.expect(Aborted)
    engine.released.set()
    await until(lambda: len(engine.calls) == 2)
    engine.say(Slot(0, 1), b"fresh")
    await shard.expect(Output)
    assert rig.stages[1].counts.stale == {"stray": 1, "epoch": 1}


async def test_a_kept_unit_is_finished_by_a_later_read(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    shard.append("a", 4, b"keep", stage=1)
    await until(lambda: bool(rig.engines[1].batches))
    rig.engines[1].say(Slot(0, 1), b"done", unit=4)
    assert (await shard.expect(Output))[0].unit == 4
    rig.engines[1].say(Slot(0, 1), b"again", unit=4)
    rig.engines[1].say(Slot(0, 1), b"free")
    assert (await shard.expect(Output))[0].unit == -1
    assert rig.stages[1].counts.stale == {"stray": 1}


async def test_a_unit_of_several_chunks_is_over_with_its_last(rigs: RigMaker) -> None:
    _, shard = await opened(rigs, "a")
    shard.append("a", 4, b"one", stage=1, last=False)
    shard.append("a", 4, b"two", stage=1)
    assert [output.last for output in await shard.expect(Output, 2)] == [False, True]


async def test_a_control_reaches_its_stage(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    shard.send(Control("a", FENCE, 1, "update"), b"voice")
    shard.send(Control("a", StageFence(9, 9, 9), 1, "update"), b"stale")
    shard.append("a", 0)
    await shard.expect(Output)
    assert rig.engines[1].calls == ["open 0.1", "control 0.1 update voice"]


async def test_too_many_waiting_units_fail_by_name(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    shard.append("a", 0, b"hold")
    await asyncio.to_thread(rig.engines[0].held.wait, 5)
    for unit in range(1, MAX_WAITING + 3):
        shard.append("a", unit)
    failures = await shard.expect(UnitFailed, 2)
    assert [(failed.unit, failed.code) for failed in failures] == [
        (65, "stage_backlog"),
        (66, "stage_backlog"),
    ]
    assert rig.stages[0].counts.failed == {"stage_backlog": 2}


async def test_an_overdue_unit_fails_and_may_be_tried_again(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    rig.worker.start()
    shard.append("a", 0, b"keep", stage=1, deadline_ms=1)
    (failed,) = await shard.expect(UnitFailed)
    assert (failed.unit, failed.stage, failed.code, failed.retryable) == (0, 1, "stage_timeout", True)
    rig.engines[1].say(Slot(0, 1), b"too late", unit=0)
    shard.append("a", 1)
    assert [output.unit for output in await shard.expect(Output)] == [1]
    assert not rig.worker.unhealthy.done()


async def test_a_step_that_does_not_end_makes_the_worker_unhealthy(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a", deadline_ms=20)
    shard.append("a", 0, b"hold")
    rig.worker.start()
    assert "p/stage0" in await asyncio.wait_for(asyncio.shield(rig.worker.unhealthy), 5)
    assert shard.got == [], "the link that goes with the process tells of its units"


async def test_slots_of_a_lost_shard_are_kept_for_its_heir_and_then_freed(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a", "b")
    heir = await rig.shard("s2", "s-2")
    assert shard.endpoint is not None
    await shard.endpoint.close()
    await until(lambda: bool(all(binding.link is None for binding in rig.worker.door)))
    heir.open("a", StageFence(2, 1, 0))
    await heir.expect(StagesOpened)
    now = asyncio.get_running_loop().time()
    assert rig.worker.door.orphans(now + 10 - 1) == []
    assert [binding.session_id for binding in rig.worker.door.orphans(now + 10)] == ["b"]
    rig.worker.free_orphans(now + 10)
    assert [stage.slots.used for stage in rig.stages] == [1, 1]
    assert rig.worker.counts.orphans_freed == 1


async def test_a_worker_that_takes_no_more_sessions_says_so(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a")
    rig.worker.accepting = False
    shard.open("b")
    assert (await shard.expect(StagesRefused))[0].code == "worker_drained"
    shard.append("a", 0)
    await shard.expect(Output)


async def test_what_there_is_no_credit_for_waits_and_what_does_not_fit_fails_its_unit(rigs: RigMaker) -> None:
    rig, shard = await opened(rigs, "a", max_kept_bytes=30)
    (binding,) = rig.worker.door
    link = NoCredit(binding.link)
    binding.link = link
    for unit in range(4):
        entry_head = b"%d" % unit * 9
        rig.engines[1].ready.append(Emission(Slot(0, 1), SESSION, NO_UNIT, 0, entry_head))
    rig.engines[1].wake()
    await until(lambda: rig.worker.counts.overflows == 1)
    assert [type(message) for message in link.sent] == [UnitFailed]
    failed = link.sent[0]
    assert isinstance(failed, UnitFailed) and failed.code == "stage_output_overflow"
    link.credit = True
    rig.worker.on_credit(link)
    assert [type(message) for message in link.sent] == [UnitFailed, Output, Output, Output]
