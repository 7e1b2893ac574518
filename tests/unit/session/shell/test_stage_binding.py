"""Which workers a session gets, what waits for their credit, and what happens when one is lost."""

from __future__ import annotations

import msgspec
import pytest
from unit.session.shell.shell_rig import FENCE, FakeLink, pipeline, registration

from duologue.bus import messages as bus
from duologue.bus.link import PeerLost
from duologue.fence import StageFence
from duologue.model.records import WorkerRecord, encode_record
from duologue.session.binding import MAX_WAITING, StageBinding
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.stages import StageHub
from duologue.session.workers import BEHIND_S, StageWorkers
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit

SPEC = pipeline()
OPEN = orders.OpenStages(FENCE, (b"c0", b"c1", b"c2", b"c3"))


class Rig:
    """A hub with workers by name and group, and one session."""

    def __init__(self, **groups: str) -> None:
        self.dialled: list[tuple[str, str]] = []
        self.hung_up: list[str] = []
        self.workers = StageWorkers(lambda name, at: self.dialled.append((name, at)), self.hung_up.append)
        self.hub = StageHub(self.workers)
        self.links = {name: FakeLink(name, "worker") for name in groups}
        self.workers.update([registration(name, group, SPEC) for name, group in groups.items()])
        for link in self.links.values():
            self.hub.on_ready(link)
        self.facts: list[facts.SessionCommand] = []

    def bind(self, session_id: str = "s") -> StageBinding:
        binding = self.hub.bind(session_id, SPEC)
        binding.post = self.facts.append
        return binding

    def lose(self, name: str) -> None:
        self.hub.on_lost(self.links[name], PeerLost(self.links[name].peer, "silent"))


def submit(unit: int, fence: StageFence = FENCE, stage: int = 0) -> orders.Submit:
    return orders.Submit(fence, stage, unit, 0, b"h", (b"f",))


async def test_sessions_spread_over_the_workers_of_a_group() -> None:
    rig = Rig(a1="a", a2="a", b1="b")
    for n in range(4):
        rig.bind(f"s{n}").open(OPEN)
    assert [len(rig.links[name].of(bus.OpenStages)) for name in ("a1", "a2", "b1")] == [2, 2, 4]


async def test_a_worker_that_says_it_is_fuller_gets_fewer() -> None:
    rig = Rig(a1="a", a2="a", b1="b")
    rig.workers.update([registration("a1", "a", SPEC, used=7), registration("a2", "a", SPEC, accepting=False)])
    rig.bind("s").open(OPEN)
    assert len(rig.links["a1"].of(bus.OpenStages)) == 1
    rig.workers.update([registration("a1", "a", SPEC, used=8)])
    rig.bind("t").open(OPEN)
    assert isinstance(rig.facts[-1], facts.StagesLost)
    assert rig.facts[-1].code == "resource_exhausted"


def lagging(name: str, lag_s: float, used: int = 0) -> Registration:
    """A worker of group a that says how long its units wait."""
    told = registration(name, "a", SPEC, used=used)
    record = msgspec.msgpack.decode(told.extra, type=WorkerRecord)
    stages = tuple(msgspec.structs.replace(stage, unit_lag_s=lag_s) for stage in record.stages)
    return msgspec.structs.replace(told, extra=encode_record(msgspec.structs.replace(record, stages=stages)))


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        (lagging("a1", 0.2), lagging("a2", 0.1), "a2"),
        (lagging("a1", 0.2), lagging("a2", 0.1, used=2), "a1"),
        (lagging("a1", BEHIND_S), lagging("a2", 0.1, used=7), "a2"),
        (lagging("a1", 5.0), lagging("a2", 0.0, used=8), "a1"),
    ],
    ids=["as much room", "more room", "falling behind", "no other has room"],
)
async def test_a_session_goes_where_there_is_room_and_units_do_not_wait(
    first: Registration, second: Registration, chosen: str
) -> None:
    rig = Rig(a1="a", a2="a", b1="b")
    rig.workers.update([first, second])
    rig.bind("s").open(OPEN)
    assert [name for name in ("a1", "a2") if rig.links[name].of(bus.OpenStages)] == [chosen]


async def test_another_life_of_a_worker_is_not_used_before_its_link_is_up() -> None:
    rig = Rig(a1="a", b1="b")
    old = registration("a1", "a", SPEC)
    reborn = type(old)(old.kind, old.id, "another-life", old.endpoint, extra=old.extra)
    rig.workers.update([reborn, registration("b1", "b", SPEC)])
    assert rig.workers.missing(SPEC) == ["a"]


def test_a_roster_without_a_worker_is_no_death_while_its_link_is_up() -> None:
    rig = Rig(a1="a", b1="b")
    assert rig.dialled == [("a1", "ipc://a1"), ("b1", "ipc://b1")]
    rig.workers.update([])
    assert rig.hung_up == []
    assert rig.workers.ready(SPEC)
    rig.lose("a1")
    rig.workers.update([])
    assert rig.hung_up == ["a1"]


async def test_a_refusal_frees_the_other_workers_and_tells_the_core() -> None:
    rig = Rig(a1="a", b1="b")
    rig.bind().open(OPEN)
    rig.hub.on_message(rig.links["a1"], bus.StagesRefused("s", FENCE, "resource_exhausted", "no slot"), [])
    assert rig.facts == [facts.StagesLost(FENCE, "resource_exhausted", "no slot", refused=True)]
    assert rig.links["b1"].of(bus.CloseStages) == [bus.CloseStages("s", FENCE)]
    rig.hub.on_message(rig.links["b1"], bus.StagesOpened("s", FENCE, (2, 3)), [])
    assert len(rig.facts) == 1


@pytest.mark.parametrize("code", ["resource_exhausted", "worker_drained"])
async def test_a_worker_without_room_is_asked_again_when_the_roster_has_news_of_it(code: str) -> None:
    rig = Rig(a1="a", b1="b")
    binding = rig.bind()
    binding.open(OPEN)
    rig.hub.on_message(rig.links["a1"], bus.StagesRefused("s", FENCE, code, "no slot"), [])
    assert rig.workers.choose(SPEC) is None
    rig.workers.update([registration("a1", "a", SPEC)])
    assert rig.workers.choose(SPEC) is not None


async def test_what_a_worker_being_drained_refuses_is_opened_by_another_or_waits_for_one() -> None:
    rig = Rig(a1="a", b1="b")
    binding = rig.bind()
    binding.open(OPEN)
    rig.hub.on_message(rig.links["a1"], bus.StagesRefused("s", FENCE, "worker_drained", "no more"), [])
    assert rig.facts == [facts.StagesLost(FENCE, "worker_drained", "no more", refused=True)]
    again = orders.OpenStages(StageFence(FENCE.owner, FENCE.binding + 1, FENCE.epoch), OPEN.configs)
    binding.open(again)
    assert len(rig.facts) == 1 and len(rig.links["a1"].of(bus.OpenStages)) == 1, "it waits"
    rig.links["a2"] = FakeLink("a2", "worker")
    rig.hub.on_ready(rig.links["a2"])
    rig.hub.update([registration("a1", "a", SPEC, accepting=False), registration("a2", "a", SPEC)])
    assert [message.fence for message in rig.links["a2"].of(bus.OpenStages)] == [again.fence]
    for name, stages in (("a2", (0, 1)), ("b1", (2, 3))):
        rig.hub.on_message(rig.links[name], bus.StagesOpened("s", again.fence, stages), [])
    assert rig.facts[1:] == [facts.StagesReady(again.fence)]
    binding.close()


async def test_what_a_worker_refuses_for_another_reason_is_no_want_of_room() -> None:
    rig = Rig(a1="a", b1="b")
    rig.bind().open(OPEN)
    rig.hub.on_message(rig.links["a1"], bus.StagesRefused("s", FENCE, "ref_audio_required", "no voice"), [])
    assert rig.workers.choose(SPEC) is not None


async def test_a_lost_worker_voids_the_binding_of_its_sessions() -> None:
    rig = Rig(a1="a", a2="a", b1="b")
    for n in range(2):
        rig.bind(f"s{n}").open(OPEN)
    rig.lose("a2")
    assert rig.facts == [facts.StagesLost(FENCE, "worker_lost", "a stage worker was lost (silent)")]
    assert len(rig.links["b1"].of(bus.CloseStages)) == 1


async def test_a_new_binding_frees_what_it_leaves() -> None:
    rig = Rig(a1="a", a2="a", b1="b")
    binding = rig.bind()
    binding.open(OPEN)
    rig.workers.update([registration("a1", "a", SPEC, accepting=False), registration("a2", "a", SPEC)])
    again = StageFence(1, 2, 0)
    binding.open(orders.OpenStages(again, OPEN.configs))
    assert rig.links["a1"].of(bus.CloseStages) == [bus.CloseStages("s", FENCE)]
    assert not rig.links["b1"].of(bus.CloseStages)
    assert rig.links["a2"].of(bus.OpenStages)[-1].fence == again
    rig.hub.on_message(rig.links["b1"], bus.StagesOpened("s", FENCE, (2, 3)), [])  # of the old binding
    rig.hub.on_message(rig.links["a2"], bus.StagesOpened("s", again, (0, 1)), [])
    assert rig.facts == []
    rig.hub.on_message(rig.links["b1"], bus.StagesOpened("s", again, (2, 3)), [])
    assert rig.facts == [facts.StagesReady(again)]


async def test_units_wait_for_credit_in_order_and_a_bound_fails_the_rest() -> None:
    rig = Rig(a1="a", b1="b")
    binding = rig.bind()
    binding.open(OPEN)
    link = rig.links["a1"]
    link.credit = False
    for unit in range(MAX_WAITING + 1):
        binding.submit(submit(unit))
    assert link.of(bus.Append) == []
    [failed] = rig.facts
    assert isinstance(failed, facts.StageFailed)
    assert (failed.unit, failed.code) == (MAX_WAITING, "stage_backpressure")
    link.credit = True
    binding.submit(submit(999))  # must not overtake
    rig.hub.on_credit(link)
    assert [message.unit for message in link.of(bus.Append)] == list(range(MAX_WAITING))
    binding.submit(submit(1000))
    assert link.of(bus.Append)[-1].unit == 1000


async def test_an_abort_overtakes_what_waits_and_says_what_never_left() -> None:
    rig = Rig(a1="a", b1="b")
    binding = rig.bind()
    binding.open(OPEN)
    link = rig.links["a1"]
    binding.submit(submit(1))
    link.credit = False
    binding.submit(submit(2))
    new = StageFence(1, 1, 1)
    binding.abort(orders.Abort(new))
    assert link.of(bus.Abort) == [bus.Abort("s", new)]
    assert rig.facts == [facts.UnitsAborted(new, (), (2,))]
    link.credit = True
    rig.hub.on_credit(link)
    assert [message.unit for message in link.of(bus.Append)] == [1]
    rig.hub.on_message(link, bus.Aborted("s", new, (1,), ()), [])
    assert rig.facts[-1] == facts.UnitsAborted(new, (1,), ())


async def test_what_comes_for_a_session_that_is_over_is_counted() -> None:
    rig = Rig(a1="a", b1="b")
    binding = rig.bind()
    binding.open(OPEN)
    rig.hub.release(binding)
    assert [type(m) for m, _ in rig.links["a1"].sent] == [bus.OpenStages, bus.CloseStages]
    rig.hub.on_message(rig.links["b1"], bus.Output("s", FENCE, 3, -1, 1, 0), [b"late"])
    assert (rig.hub.late, len(rig.hub), rig.facts) == (1, 0, [])
