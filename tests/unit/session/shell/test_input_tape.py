"""What a model heard is written in batches, within bounds, and read back as one order of units."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from simulation.virtual_time import VirtualLoop

from duologue.fence import Owner
from duologue.model.pipeline import PipelineSpec, StageSpec
from duologue.model.plugin import RecordedUnit
from duologue.session import input_tape
from duologue.session.background import Background
from duologue.session.core import InputRecalled, RecallInput, RecordInput, SessionCommand
from duologue.session.input_tape import InputTape
from duologue.session.tallies import Tallies
from duologue.store.memory import MemoryStore
from duologue.store.ports import Done, InputEntry, Owned, Refused, SessionRecord, StoreUnavailable
from duologue.store.sessions import ScriptedSessions

pytestmark = pytest.mark.unit

SID = "s"
GATHER_S = 0.5


class Counting(ScriptedSessions):
    """How many units each write held; while `away` the outcome is not known, though it may be carried out."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store.server)
        self.writes: list[int] = []
        self.away = False
        self.executes = False

    async def record(
        self, session_id: str, owner: Owner, entries: Sequence[InputEntry], keep: tuple[int, int] | None = None
    ) -> Done | Refused:
        if self.away and not self.executes:
            raise StoreUnavailable("no answer")
        self.writes.append(len(entries))
        result = await super().record(session_id, owner, entries, keep)
        if self.away:
            raise StoreUnavailable("the reply was lost")
        return result


class Rig:
    """A tape of units of one second, in virtual time."""

    def __init__(self, window_s: float = 4.0) -> None:
        self.store = Counting(MemoryStore())
        self.background = Background()
        self.window_s = window_s
        self.tallies = Tallies()
        self.answers: list[InputRecalled] = []

    async def open(self, incarnation: str = "i") -> InputTape:
        create = SessionRecord("p", "d", b"t", "g") if incarnation == "i" else None
        owned = await self.store.own(SID, incarnation=incarnation, create=create)
        assert isinstance(owned, Owned)
        pipeline = PipelineSpec("p", "x:y", (StageSpec("s", "x:y", "w"),), rebuild_window_s=self.window_s)
        tape = InputTape(
            self.store, self.background, SID, owned.owner, pipeline=pipeline, unit_ms=1000, tallies=self.tallies
        )
        tape.post = self._post
        return tape

    def _post(self, fact: SessionCommand) -> None:
        assert isinstance(fact, InputRecalled)
        self.answers.append(fact)

    async def recalled(self, tape: InputTape, below: int = 1000) -> list[int]:
        tape.recall(RecallInput(len(self.answers) + 1, below))
        await self.background.settle()
        assert not self.answers[-1].error
        return [unit.unit for unit in self.answers[-1].units]


def heard(tape: InputTape, *units: int, size: int = 8) -> None:
    for unit in units:
        tape.record(RecordInput(RecordedUnit(unit, 1, 0, b"head", (bytes(size), b"%d" % unit))))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.background.close()


def in_virtual_time(test: object) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(test)  # type: ignore[arg-type]
    finally:
        loop.close()


async def test_what_was_heard_comes_back_as_it_was(rig: Rig) -> None:
    tape = await rig.open()
    heard(tape, 0, 1)
    assert await rig.recalled(tape) == [0, 1], "what waits is written first"
    assert rig.answers[0].ticket == 1
    assert rig.answers[0].units[1] == RecordedUnit(1, 1, 0, b"head", (bytes(8), b"1"))


def test_units_are_gathered_into_one_write() -> None:
    async def check() -> None:
        rig = Rig(window_s=60)
        tape = await rig.open()
        for unit in range(10):
            heard(tape, unit)
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        assert sum(rig.store.writes) == 10 and len(rig.store.writes) <= 3
        assert rig.tallies.input_recorded == 10 and not tape.waiting

    in_virtual_time(check())


async def test_the_store_keeps_the_window_and_no_more(rig: Rig) -> None:
    tape = await rig.open()
    for unit in range(10):
        heard(tape, unit)
        await rig.recalled(tape)
    assert [entry.unit for entry in await rig.store.recorded(SID)] == [6, 7, 8, 9]
    assert not rig.tallies.input_unrecorded


async def test_a_window_of_large_units_is_bounded_by_its_bytes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_tape, "MAX_BYTES", 2500)
    tape = await rig.open()
    for unit in range(4):
        heard(tape, unit, size=1000)
        await rig.recalled(tape)
    assert [entry.unit for entry in await rig.store.recorded(SID)] == [2, 3]


def test_a_store_that_is_away_is_asked_again_and_what_does_not_fit_is_counted() -> None:
    async def check() -> None:
        rig = Rig()
        tape = await rig.open()
        rig.store.away = True
        for unit in range(7):
            heard(tape, unit)
            await asyncio.sleep(GATHER_S)
        assert tape.waiting == 4 and rig.tallies.input_unrecorded == 3
        tape.recall(RecallInput(1, 1000))
        await asyncio.sleep(0.1)
        assert rig.answers == [InputRecalled(1, error="store_away")]
        rig.store.away = False
        await asyncio.sleep(2 * GATHER_S)
        assert await rig.recalled(tape) == [3, 4, 5, 6]

    in_virtual_time(check())


def test_a_write_whose_reply_was_lost_is_repeated_and_counts_once() -> None:
    async def check() -> None:
        rig = Rig()
        tape = await rig.open()
        rig.store.away = rig.store.executes = True
        heard(tape, 0, 1)
        await asyncio.sleep(3 * GATHER_S)
        rig.store.away = False
        await asyncio.sleep(3 * GATHER_S)
        assert await rig.recalled(tape) == [0, 1]
        assert len(await rig.store.recorded(SID)) == 2

    in_virtual_time(check())


async def test_only_what_was_heard_before_the_asked_unit_is_told(rig: Rig) -> None:
    tape = await rig.open()
    heard(tape, 0, 1, 2)
    assert await rig.recalled(tape, below=2) == [0, 1]


async def test_what_the_old_owner_had_heard_beyond_its_heirs_first_unit_never_happened(rig: Rig) -> None:
    old = await rig.open()
    heard(old, 0, 1, 2, 3)
    await rig.recalled(old)
    heir = await rig.open("heir")
    assert await rig.recalled(heir, below=2) == [0, 1]
    heard(heir, 2)
    assert await rig.recalled(heir) == [0, 1, 2]
    assert rig.answers[-1].units[2] == RecordedUnit(2, 1, 0, b"head", (bytes(8), b"2"))


async def test_a_replaced_owner_writes_nothing_more(rig: Rig) -> None:
    old = await rig.open()
    await rig.open("heir")
    heard(old, 0)
    old.recall(RecallInput(1, 9))
    await rig.background.settle()
    assert not rig.answers, "it is not asked for by anybody who may know"
    heard(old, 1)
    assert not old.waiting and await rig.store.recorded(SID) == ()


async def test_an_entry_that_cannot_be_read_is_told_by_name(rig: Rig) -> None:
    tape = await rig.open()
    await rig.store.record(SID, Owner(1, "i"), [InputEntry(1, 0, b"\xc1")])
    tape.recall(RecallInput(1, 9))
    await rig.background.settle()
    assert rig.answers == [InputRecalled(1, error="unreadable")]


async def test_a_stopped_tape_says_nothing(rig: Rig) -> None:
    tape = await rig.open()
    heard(tape, 0)
    tape.recall(RecallInput(1, 9))
    tape.stop()
    await rig.background.settle()
    assert not rig.answers and not tape.waiting
