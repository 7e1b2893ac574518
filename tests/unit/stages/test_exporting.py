"""A session's state leaves a worker between two units and enters another one; nothing is lost by asking."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from unit.stages.rig import FENCE, NoCredit, Rig, Shard, until

from duologue.bus.messages import (
    Abort,
    Aborted,
    CloseStages,
    Control,
    ExportRefused,
    ExportStages,
    ImportStages,
    Output,
    StagesExported,
    StagesOpened,
    StagesRefused,
    UnitFailed,
)
from duologue.fence import StageFence
from duologue.model.engine import Slot

pytestmark = pytest.mark.unit

ASKED = ExportStages("a", FENCE, 5)


@pytest.fixture
async def worker() -> AsyncIterator[tuple[Rig, Shard]]:
    """Session `a` is open in it."""
    rig = await Rig().start()
    shard = await rig.shard()
    shard.open("a")
    await shard.expect(StagesOpened)
    yield rig, shard
    await rig.close()


def frames_of(shard: Shard, kind: type) -> list[tuple[bytes, ...]]:
    return [frames for message, frames in shard.got if isinstance(message, kind)]


def release(rig: Rig) -> None:
    """What is held goes on, in both stages."""
    for engine in rig.engines:
        engine.released.set()


async def exported(shard: Shard) -> tuple[bytes, ...]:
    """The states of the answer to `ASKED`."""
    await until(lambda: bool(frames_of(shard, StagesExported)))
    [frames] = frames_of(shard, StagesExported)
    [message] = await shard.expect(StagesExported)
    assert message == StagesExported("a", FENCE, 5, (0, 1))
    return frames


async def test_the_state_follows_all_that_was_made_of_the_units_under_way(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    shard.append("a", 0, b"hold")
    await until(rig.engines[0].held.is_set)
    shard.append("a", 1, b"x")
    shard.send(ASKED)
    shard.append("b", 9)  # answered at once: the question has been read, and waits
    await shard.expect(UnitFailed)
    assert not any("export" in call for engine in rig.engines for call in engine.calls)
    release(rig)
    await until(lambda: bool(frames_of(shard, StagesExported)))
    told = [type(message) for message, _ in shard.got]
    assert told == [Output, Output, StagesExported]
    assert await exported(shard) == (b"state", b"state")
    assert len(rig.worker.door) == 1, "the session stays until it is closed"


async def test_a_unit_that_fails_is_over_too(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    shard.append("a", 0, b"fail")
    shard.send(ASKED)
    await shard.expect(UnitFailed)
    assert await exported(shard) == (b"state", b"state")


async def test_a_question_without_ticket_takes_back_the_one_before(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    shard.append("a", 0, b"hold")
    await until(rig.engines[0].held.is_set)
    shard.send(ASKED)
    shard.send(ExportStages("a", FENCE, 0))
    release(rig)
    await shard.expect(Output)
    shard.append("a", 1)
    await shard.expect(Output)
    assert not any("export" in call for engine in rig.engines for call in engine.calls)


@pytest.mark.parametrize("then", ["unit", "cancel", "control"])
async def test_whatever_else_comes_takes_it_back(worker: tuple[Rig, Shard], then: str) -> None:
    rig, shard = worker
    shard.append("a", 0, b"hold")
    await until(rig.engines[0].held.is_set)
    shard.send(ASKED)
    fence = FENCE
    if then == "unit":
        shard.append("a", 1)
    elif then == "control":
        shard.send(Control("a", FENCE, 0, "update"), b"body")
    else:
        fence = StageFence(1, 1, 1)
        shard.send(Abort("a", fence))
        await shard.expect(Aborted)
    release(rig)
    shard.append("a", 2, fence=fence)
    await until(lambda: any(isinstance(m, Output) and m.unit == 2 for m, _ in shard.got))
    assert not frames_of(shard, StagesExported) and not frames_of(shard, ExportRefused)


async def test_an_answer_that_is_late_belongs_to_no_later_question(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    shard.send(ASKED)
    shard.send(ExportStages("a", FENCE, 6))
    [answer] = await shard.expect(StagesExported)
    assert answer.ticket == 6
    assert not frames_of(shard, StagesExported)


async def test_a_session_goes_on_in_another_slot_with_its_state(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    shard.send(ImportStages("b", FENCE, "p", (0, 1)), b"one", b"two")
    [opened] = await shard.expect(StagesOpened)
    assert opened == StagesOpened("b", FENCE, (0, 1))
    assert [engine.calls[-1] for engine in rig.engines] == ["import 1.2 one", "import 1.2 two"]
    shard.append("b", 3)
    [output] = await shard.expect(Output)
    assert output.unit == 3


async def test_a_state_that_cannot_be_read_is_refused_and_takes_nothing(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    shard.send(ImportStages("b", FENCE, "p", (0, 1)), b"fine", b"refuse")
    [refused] = await shard.expect(StagesRefused)
    assert refused.code == "state_unreadable"
    assert [stage.slots.used for stage in rig.stages] == [1, 1]


async def test_a_worker_that_is_drained_takes_no_state(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    rig.worker.drain(10)
    shard.send(ImportStages("b", FENCE, "p", (0, 1)), b"", b"")
    [refused] = await shard.expect(StagesRefused)
    assert refused.code == "worker_drained"


async def test_a_drained_worker_is_empty_once_what_it_gave_away_is_closed(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    rig.worker.drain(10)
    shard.send(ASKED)
    await exported(shard)
    assert not rig.worker.drained.is_set()
    shard.send(CloseStages("a", FENCE))
    await until(rig.worker.drained.is_set)
    assert [stage.slots.used for stage in rig.stages] == [0, 0]


@pytest.mark.parametrize(
    ("state", "code"), [(None, "not_now"), (b"raise", "engine_error"), (b"x" * 64, "state_too_large")]
)
async def test_what_cannot_leave_stays_and_says_why(worker: tuple[Rig, Shard], state: bytes | None, code: str) -> None:
    rig, shard = worker
    rig.engines[1].state = state
    shard.send(ASKED)
    [refused] = await shard.expect(ExportRefused)
    assert (refused.ticket, refused.code) == (5, code)
    shard.append("a", 0)
    await shard.expect(Output)


async def test_an_engine_that_does_not_export_is_not_asked(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    rig.engines[0].exports = False
    shard.send(ASKED)
    [refused] = await shard.expect(ExportRefused)
    assert refused.code == "unsupported"
    assert not any("export" in call for engine in rig.engines for call in engine.calls)


@pytest.mark.parametrize("asked", [ExportStages("b", FENCE, 5), ExportStages("a", StageFence(1, 1, 1), 5)])
async def test_a_session_that_is_not_here_is_told(worker: tuple[Rig, Shard], asked: ExportStages) -> None:
    _, shard = worker
    shard.send(asked)
    [refused] = await shard.expect(ExportRefused)
    assert (refused.session_id, refused.code) == (asked.session_id, "stage_not_open")


async def test_what_is_made_after_the_state_was_given_takes_it_back(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    shard.send(ASKED)
    await exported(shard)
    rig.engines[1].say(Slot(0, 1), b"more")
    [refused] = await shard.expect(ExportRefused)
    assert (refused.ticket, refused.code) == (5, "not_now")
    await shard.expect(Output)


async def test_a_state_that_there_is_no_room_for_stays(worker: tuple[Rig, Shard]) -> None:
    rig, shard = worker
    link = NoCredit(shard.link)
    rig.worker._max_kept_bytes = 4
    rig.worker.on_message(link, ASKED, ())
    await until(lambda: bool(link.sent))
    [refused] = link.sent
    assert isinstance(refused, ExportRefused) and refused.code == "stage_output_overflow"
