"""Stages of a draining worker go to another one with what they hold; whatever goes wrong leaves them where they are."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from unit.session.shell.shell_rig import FENCE, FakeLink, pipeline, registration

from duologue.bus import messages as bus
from duologue.bus.link import PeerLost
from duologue.fence import StageFence
from duologue.model.records import WorkerRecord, encode_record
from duologue.session import binding as binding_module
from duologue.session.binding import StageBinding
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.moving import MAX_MOVES
from duologue.session.stages import StageHub
from duologue.session.workers import StageWorkers
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit

SPEC = pipeline()
OPEN = orders.OpenStages(FENCE, (b"c0", b"c1", b"c2", b"c3"))
STATES = [b"s0", b"s1"]


def told(name: str, *, exports: bool = True, draining_s: float = -1.0, used: int = 0) -> Registration:
    member = registration(name, name[0], SPEC, used=used, accepting=draining_s < 0)
    record = msgspec.msgpack.decode(member.extra, type=WorkerRecord)
    stages = tuple(msgspec.structs.replace(stage, exports=exports) for stage in record.stages)
    record = msgspec.structs.replace(record, stages=stages, draining_s=draining_s)
    return msgspec.structs.replace(member, extra=encode_record(record))


class Rig:
    """Sessions that are open at a1 and b1, of which a1 is about to be drained; a2 has room."""

    def __init__(self, sessions: int = 1) -> None:
        self.hub = StageHub(StageWorkers(lambda name, at: None, lambda name: None))
        self.links = {name: FakeLink(name, "worker") for name in ("a1", "b1", "a2")}
        self.hub.update([told("a1"), told("b1")])
        for link in self.links.values():
            self.hub.on_ready(link)
        self.facts: list[facts.SessionCommand] = []
        self.bindings = [self._open(f"s{n}") for n in range(sessions)]
        self.binding = self.bindings[0]
        self.facts.clear()

    def _open(self, session_id: str) -> StageBinding:
        binding = self.hub.bind(session_id, SPEC)
        binding.post = self.facts.append
        binding.open(OPEN)
        self.hub.on_message(self.links["a1"], bus.StagesOpened(session_id, FENCE, (0, 1)), [])
        self.hub.on_message(self.links["b1"], bus.StagesOpened(session_id, FENCE, (2, 3)), [])
        return binding

    def drain(self, *, draining_s: float = 5.0, a1: bool = True, a2: bool = True) -> None:
        members = [told("a1", draining_s=draining_s, exports=a1), told("b1"), told("a2", exports=a2)]
        self.hub.update(members)

    def asked(self) -> list[bus.ExportStages]:
        return [message for message in self.links["a1"].of(bus.ExportStages) if message.ticket]

    def give(self, asked: bus.ExportStages) -> None:
        answer = bus.StagesExported(asked.session_id, asked.fence, asked.ticket, (0, 1))
        self.hub.on_message(self.links["a1"], answer, STATES)

    def at_heir(self) -> None:
        """The question is answered, and the heir is about to open."""
        self.drain()
        self.give(self.asked()[0])

    def opened(self) -> None:
        self.hub.on_message(self.links["a2"], bus.StagesOpened("s0", FENCE, (0, 1)), [])

    def submit(self, unit: int, stage: int = 0) -> None:
        self.binding.submit(orders.Submit(self.binding._fence, stage, unit, 0, b"h", (b"f",)))

    def units(self, name: str) -> list[int]:
        return [message.unit for message in self.links[name].of(bus.Append)]

    @property
    def rebinds(self) -> int:
        return self.facts.count(facts.RebindWanted("worker_drained"))


async def test_units_wait_while_the_state_is_on_its_way_and_go_to_the_heir() -> None:
    rig = Rig()
    rig.submit(1)
    rig.drain()
    [asked] = rig.asked()
    assert (asked.session_id, asked.fence) == ("s0", FENCE)
    rig.submit(2)
    rig.submit(7, stage=2)
    assert (rig.units("a1"), rig.units("b1")) == ([1], [7]), "the other stages work on"
    rig.hub.on_output(rig.links["a1"], bus.Output("s0", FENCE, 0, 2, 1, 0), [b"head"])
    rig.give(asked)
    assert rig.links["a2"].sent == [(bus.ImportStages("s0", FENCE, "toy", (0, 1)), STATES)]
    rig.submit(3)
    assert not rig.links["a1"].of(bus.CloseStages), "it keeps the session until the heir has it"
    rig.opened()
    assert rig.units("a2") == [2, 3] and rig.units("a1") == [1]
    assert rig.links["a1"].sent[-1] == (bus.CloseStages("s0", FENCE), [])
    rig.submit(4)
    assert rig.units("a2") == [2, 3, 4]
    [output] = rig.facts
    assert isinstance(output, facts.StageOutput) and output.unit == 1, "the core heard nothing else"
    assert (rig.hub.moves.moved, rig.hub.moves.failed, rig.hub.moves.under_way) == ({"state": 1}, {}, 0)
    bound = {worker.name: worker.bound.get("toy", 0) for worker in rig.hub.workers}
    assert bound == {"a1": 0, "b1": 1, "a2": 1}


async def test_what_the_old_worker_still_says_is_dropped() -> None:
    rig = Rig()
    rig.at_heir()
    rig.opened()
    rig.hub.on_output(rig.links["a1"], bus.Output("s0", FENCE, 0, 2, 1, 0), [b"head"])
    rig.hub.on_message(rig.links["a1"], bus.UnitFailed("s0", FENCE, 0, 1, "engine_error", "late"), [])
    assert rig.facts == [] and rig.hub.moves.late == 2
    rig.hub.on_output(rig.links["a2"], bus.Output("s0", FENCE, 0, 2, 1, 0), [b"head"])
    rig.hub.on_output(rig.links["b1"], bus.Output("s0", FENCE, 3, -1, 1, 0), [b"head"])
    assert len(rig.facts) == 2


async def test_it_moves_on_from_the_heir() -> None:
    rig = Rig()
    rig.at_heir()
    rig.opened()
    rig.hub.update([told("a2", draining_s=5.0), told("b1"), told("a1")])
    [asked] = rig.links["a2"].of(bus.ExportStages)
    rig.hub.on_message(rig.links["a2"], bus.StagesExported("s0", FENCE, asked.ticket, (0, 1)), STATES)
    rig.hub.on_message(rig.links["a1"], bus.StagesOpened("s0", FENCE, (0, 1)), [])
    rig.submit(5)
    assert rig.units("a1") == [5] and rig.hub.moves.moved == {"state": 2}


@pytest.mark.parametrize("fewer", [{"a1": False}, {"a2": False}], ids=["the old one", "the heir"])
async def test_a_worker_that_does_not_know_of_it_is_left_at_a_turn_end(fewer: dict[str, bool]) -> None:
    rig = Rig()
    rig.drain(**fewer)
    rig.drain(**fewer)
    assert rig.asked() == [] and rig.rebinds == 1
    again = StageFence(1, 2, 0)
    rig.binding.open(orders.OpenStages(again, OPEN.configs))
    assert rig.hub.moves.moved == {"rebuild": 1}
    rig.binding.close()


async def test_without_room_elsewhere_it_stays() -> None:
    rig = Rig()
    rig.hub.update([told("a1", draining_s=5.0), told("b1"), told("a2", used=8)])
    assert rig.asked() == [] and rig.facts == []
    rig.drain()
    assert len(rig.asked()) == 1


def goes_on_at_the_old_one(rig: Rig) -> None:
    """What waited went there, in order."""
    rig.submit(3)
    assert rig.units("a1") == [2, 3] and rig.units("a2") == []
    assert rig.hub.moves.under_way == 0 and rig.hub.moves.moved == {}
    assert {worker.name: worker.bound.get("toy", 0) for worker in rig.hub.workers}["a1"] == 1


@pytest.mark.parametrize("code", ["state_too_large", "engine_error", "unsupported"])
async def test_a_refusal_of_the_old_worker_leaves_it_to_the_turn_end(code: str) -> None:
    rig = Rig()
    rig.drain()
    rig.submit(2)
    [asked] = rig.asked()
    rig.hub.on_message(rig.links["a1"], bus.ExportRefused("s0", FENCE, asked.ticket, code, "why"), [])
    goes_on_at_the_old_one(rig)
    rig.drain(draining_s=4.0)
    assert len(rig.asked()) == 1 and rig.rebinds == 1
    assert rig.hub.moves.failed == {code: 1}


async def test_in_the_middle_of_something_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.drain()
    rig.submit(2)
    monkeypatch.setattr(binding_module, "NOT_NOW_S", 0.0)
    rig.hub.on_message(rig.links["a1"], bus.ExportRefused("s0", FENCE, rig.asked()[0].ticket, "not_now", "why"), [])
    goes_on_at_the_old_one(rig)
    rig.drain(draining_s=4.0)
    first, second = rig.asked()
    assert second.ticket != first.ticket and rig.rebinds == 0
    rig.give(first)
    assert rig.links["a2"].sent == [], "that was another question"
    rig.give(second)
    assert len(rig.links["a2"].of(bus.ImportStages)) == 1


async def test_a_refusal_of_the_heir_leaves_it_to_the_turn_end() -> None:
    rig = Rig()
    rig.at_heir()
    rig.submit(2)
    rig.hub.on_message(rig.links["a2"], bus.StagesRefused("s0", FENCE, "state_unreadable", "of another version"), [])
    goes_on_at_the_old_one(rig)
    rig.drain(draining_s=4.0)
    assert len(rig.asked()) == 1 and rig.rebinds == 1
    assert rig.hub.moves.failed == {"import_state_unreadable": 1}


async def test_an_heir_that_dies_leaves_it_where_it_is() -> None:
    rig = Rig()
    rig.at_heir()
    rig.submit(2)
    rig.hub.on_lost(rig.links["a2"], PeerLost(rig.links["a2"].peer, "silent"))
    goes_on_at_the_old_one(rig)
    assert not [fact for fact in rig.facts if isinstance(fact, facts.StagesLost)]
    assert rig.hub.moves.failed == {"heir_lost": 1}


async def test_an_old_worker_that_dies_is_lost_as_ever() -> None:
    rig = Rig()
    rig.at_heir()
    rig.hub.on_lost(rig.links["a1"], PeerLost(rig.links["a1"].peer, "silent"))
    [lost] = rig.facts
    assert isinstance(lost, facts.StagesLost) and lost.code == "worker_lost"
    assert rig.links["a2"].sent[-1] == (bus.CloseStages("s0", FENCE), [])
    rig.opened()
    rig.submit(3)
    assert rig.units("a2") == [] and rig.hub.moves.under_way == 0


async def test_a_heir_without_credit_is_none() -> None:
    rig = Rig()
    rig.drain()
    rig.submit(2)
    rig.links["a2"].credit = False
    rig.give(rig.asked()[0])
    goes_on_at_the_old_one(rig)
    assert rig.hub.moves.failed == {"no_credit": 1}


async def test_what_takes_too_long_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding_module, "MOVE_TIMEOUT_S", 0.0)
    rig = Rig()
    rig.at_heir()
    rig.submit(2)
    over = asyncio.Event()
    rig.hub.moves.on_over = over.set
    await over.wait()
    goes_on_at_the_old_one(rig)
    assert rig.hub.moves.failed == {"timeout": 1} and rig.rebinds == 1
    assert rig.links["a2"].sent[-1] == (bus.CloseStages("s0", FENCE), [])
    rig.opened()  # too late
    rig.submit(4)
    assert rig.units("a2") == []


@pytest.mark.parametrize("with_heir", [False, True], ids=["asked", "at the heir"])
async def test_a_cancel_on_the_way_keeps_it_and_drops_what_waited(with_heir: bool) -> None:
    rig = Rig()
    rig.drain()
    if with_heir:
        rig.give(rig.asked()[0])
    rig.submit(2)
    new = StageFence(1, 1, 1)
    rig.binding.abort(orders.Abort(new))
    assert rig.facts == [facts.UnitsAborted(new, (), (2,))]
    assert rig.links["a1"].of(bus.Abort) == [bus.Abort("s0", new)]
    assert rig.links["a2"].of(bus.CloseStages) == ([bus.CloseStages("s0", FENCE)] if with_heir else [])
    rig.submit(3)
    assert rig.units("a1") == [3]
    rig.give(rig.asked()[0])
    rig.opened()
    rig.submit(4)
    assert rig.units("a1") == [3, 4], "what is told of the move now is of the past"
    rig.drain(draining_s=4.0)
    assert (len(rig.asked()), rig.rebinds) == ((1, 1) if with_heir else (2, 0))


async def test_a_session_that_ends_or_is_bound_anew_takes_its_move_along() -> None:
    rig = Rig(2)
    rig.drain()
    for asked in rig.asked():
        rig.give(asked)
    first, second = rig.bindings
    rig.hub.release(first)
    second.open(orders.OpenStages(StageFence(1, 2, 0), OPEN.configs))
    assert rig.links["a2"].of(bus.CloseStages) == [bus.CloseStages("s0", FENCE), bus.CloseStages("s1", FENCE)]
    assert rig.links["a2"].of(bus.OpenStages)[-1].fence == StageFence(1, 2, 0)
    assert rig.hub.moves.under_way == 0 and rig.hub.moves.failed == {"ended": 2}
    assert {worker.name: worker.bound.get("toy", 0) for worker in rig.hub.workers} == {"a1": 0, "b1": 1, "a2": 1}
    second.close()


async def test_so_many_move_at_once_and_the_others_follow() -> None:
    rig = Rig(MAX_MOVES + 2)
    rig.drain()
    assert len(rig.asked()) == MAX_MOVES == rig.hub.moves.under_way
    for n in range(2):
        rig.give(rig.asked()[n])
        rig.hub.on_message(rig.links["a2"], bus.StagesOpened(f"s{n}", FENCE, (0, 1)), [])
    await asyncio.sleep(0)
    assert [asked.session_id for asked in rig.asked()] == [f"s{n}" for n in range(MAX_MOVES + 2)]
    for binding in rig.bindings:
        binding.close()


async def test_units_that_wait_for_credit_go_first() -> None:
    rig = Rig()
    rig.links["a1"].credit = False
    rig.submit(1)
    rig.drain()
    assert rig.asked() == []
    rig.links["a1"].credit = True
    rig.hub.on_credit(rig.links["a1"])
    rig.drain(draining_s=4.0)
    assert rig.units("a1") == [1] and len(rig.asked()) == 1
    rig.submit(2)
    rig.hub.on_credit(rig.links["a1"])
    assert rig.units("a1") == [1], "that waits for the heir"
    rig.binding.close()


async def test_at_the_deadline_it_is_left_whatever_is_on_its_way() -> None:
    rig = Rig()
    rig.at_heir()
    rig.drain(draining_s=0.0)
    [lost] = rig.facts
    assert isinstance(lost, facts.StagesLost) and lost.code == "worker_drained"
    assert rig.hub.moves.moved == {"deadline": 1} and rig.hub.moves.under_way == 0
