"""Stages that were lost are opened again when there are workers for them, and nothing turns in a circle until then."""

from __future__ import annotations

import msgspec
import pytest
from unit.session.shell.shell_rig import FENCE, FakeLink, pipeline, registration

from duologue.bus import messages as bus
from duologue.bus.link import PeerLost
from duologue.fence import StageFence
from duologue.model.records import WorkerRecord, encode_record
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.stages import StageHub
from duologue.session.workers import StageWorkers
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit

SPEC = pipeline()
CONFIGS = (b"c0", b"c1", b"c2", b"c3")
AGAIN = orders.OpenStages(StageFence(FENCE.owner, FENCE.binding + 1, FENCE.epoch), CONFIGS)


class Rig:
    """A session bound to a1 and b1, whose core asks for a new binding whenever it hears of a loss."""

    def __init__(self) -> None:
        self.hub = StageHub(StageWorkers(lambda name, at: None, lambda name: None))
        self.members = [registration("a1", "a", SPEC), registration("b1", "b", SPEC)]
        self.hub.update(self.members)
        for name in ("a1", "b1"):
            self.hub.on_ready(FakeLink(name, "worker"))
        self.facts: list[facts.SessionCommand] = []
        self.binding = self.hub.bind("s", SPEC)
        self.binding.post = self.facts.append
        self.binding.open(orders.OpenStages(FENCE, CONFIGS))

    def lose(self, link_name: str) -> None:
        link = next(link for link in self.binding.links if link.peer.name == link_name)
        self.hub.on_lost(link, PeerLost(link.peer, "gap"))


async def test_a_binding_without_a_worker_waits_for_its_link() -> None:
    rig = Rig()
    rig.lose("b1")
    assert [type(fact) for fact in rig.facts] == [facts.StagesLost]
    rig.binding.open(AGAIN)
    assert [type(fact) for fact in rig.facts] == [facts.StagesLost]
    again = FakeLink("b1", "worker")
    rig.hub.on_ready(again)
    assert [message.fence for message in again.of(bus.OpenStages)] == [AGAIN.fence]
    rig.binding.close()


async def test_a_binding_without_a_worker_waits_for_another_one_to_register() -> None:
    rig = Rig()
    rig.lose("b1")
    rig.binding.open(AGAIN)
    other = FakeLink("b2", "worker")
    rig.hub.on_ready(other)
    assert other.of(bus.OpenStages) == []
    rig.hub.update([*rig.members, registration("b2", "b", SPEC)])
    assert [message.fence for message in other.of(bus.OpenStages)] == [AGAIN.fence]
    rig.binding.close()


async def test_a_first_binding_without_a_worker_is_refused_at_once() -> None:
    rig = Rig()
    rig.lose("b1")
    rig.facts.clear()
    binding = rig.hub.bind("other", SPEC)
    binding.post = rig.facts.append
    binding.open(orders.OpenStages(FENCE, CONFIGS))
    lost = rig.facts[-1]
    assert isinstance(lost, facts.StagesLost) and lost.code == "resource_exhausted"


def draining(seconds: float) -> Registration:
    """The worker a1, being taken out of service."""
    member = registration("a1", "a", SPEC, accepting=False)
    record = msgspec.msgpack.decode(member.extra, type=WorkerRecord)
    return msgspec.structs.replace(member, extra=encode_record(msgspec.structs.replace(record, draining_s=seconds)))


async def test_a_drained_worker_is_left_at_a_turn_end_if_there_is_room_elsewhere() -> None:
    rig = Rig()
    rig.hub.update([draining(5.0), rig.members[1]])
    assert not rig.facts, "where to?"
    rig.hub.update([draining(4.5), rig.members[1], registration("a2", "a", SPEC)])
    rig.hub.on_ready(FakeLink("a2", "worker"))
    for left_s in (4.0, 3.5):
        rig.hub.update([draining(left_s), rig.members[1], registration("a2", "a", SPEC)])
    assert rig.facts == [facts.RebindWanted("worker_drained")], "once"
    rig.binding.open(AGAIN)
    rig.hub.update([draining(3.0), rig.members[1], registration("a2", "a", SPEC)])
    assert len(rig.facts) == 1, "it has left"


async def test_at_the_deadline_it_is_left_whatever_is_being_said() -> None:
    rig = Rig()
    rig.hub.update([draining(0.0), rig.members[1]])
    [lost] = rig.facts
    assert isinstance(lost, facts.StagesLost) and lost.code == "worker_drained"
