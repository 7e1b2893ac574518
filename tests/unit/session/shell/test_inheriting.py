"""A session of another shard: taken over in order, told to nobody too early, and let be when it is not ours to take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from unit.session.shell.shell_rig import FakeLink, Shell

from duologue.bus import messages as bus
from duologue.fence import DeliveryId, Owner, StageFence
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.core.engine_session import STATE_VERSION
from duologue.session.inheriting import MAX_RUNNING
from duologue.session.opening import StoredExtra
from duologue.store.ports import Head, Owned, Registration, SessionRecord

pytestmark = pytest.mark.unit


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    made = Shell(max_sessions=2)
    made.register_workers()
    for at in range(8):
        made.vitals.heard([Registration("shard", "me", "shard-life")], at * 0.5 - 100.0)
    yield made
    await made.close()


def judge(shell: Shell) -> None:
    """The roster is fresh: who is not in it is dead, and `dead-life` was there once."""
    now = asyncio.get_running_loop().time()
    me = Registration("shard", "me", "shard-life")
    for at in range(8):
        shell.vitals.heard([me, Registration("shard", "other", "dead-life")], now - 4 + at * 0.5)
    shell.vitals.heard([me], now)


async def left(shell: Shell, session_id: str = "s", *, gateway: str = "g1-life", saved: bool = True) -> Owner:
    """What another shard's session leaves in the store."""
    record = SessionRecord("p", "duplex", b"t", gateway, extra=msgspec.msgpack.encode(StoredExtra(shell.spec.name)))
    owned = await shell.store.sessions.own(session_id, incarnation="dead-life", create=record)
    assert isinstance(owned, Owned)
    if saved:
        await shell.store.sessions.checkpoint(session_id, owned.owner, 7, b"state")
    head = await shell.store.journal.claim(session_id, owner=owned.owner)
    assert isinstance(head, Head)
    await shell.store.journal.append(session_id, owned.owner, head.egress, 1, [(DeliveryId(1, 4), b'{"n":4}')])
    return owned.owner


async def test_it_is_owned_fenced_restored_and_only_told_when_it_is_saved(shell: Shell) -> None:
    owner = await left(shell)
    judge(shell)
    shell.board.on_message(shell.gateway, bus.Adopt("s", "dead-life"), [])
    await shell.background.settle()
    [machine] = shell.machines
    assert machine.owner == 2
    assert machine.handled[0] == facts.Adopted(2, DeliveryId(1, 4), 1, ((DeliveryId(1, 4), b'{"n":4}'),))
    found = await shell.store.sessions.look_up("s")
    assert found is not None and found.owner == Owner(2, "shard-life")
    late = await shell.store.journal.append("s", owner, 9, 2, [(DeliveryId(1, 5), b"{}")])
    assert getattr(late, "reason", "") == "owner"
    closed = [m for m in shell.worker_a.of(bus.CloseStages) if m.session_id == "s"]
    assert closed[0].fence == StageFence(2), "whatever the old owner has open is let go"
    shell.board.on_message(shell.gateway, bus.Attach("s", 1, 5, "g1-life"), [])
    assert not shell.gateway.of(bus.Attached) and not shell.egresses
    resident = shell.manager.residents[0]
    resident.runner.checkpointer.put(orders.Checkpoint(1, b"state", machine.applied))
    await shell.background.settle()
    [attached] = shell.gateway.of(bus.Attached)
    assert (attached.generation, attached.owner, attached.seq) == (1, Owner(2, "shard-life"), 1)
    assert shell.inheritance.outcomes["adopted"] == 1


async def test_an_attachment_that_comes_first_is_answered_when_the_session_is_here(shell: Shell) -> None:
    await left(shell)
    judge(shell)
    shell.board.on_message(shell.gateway, bus.Adopt("s", "dead-life"), [])
    shell.board.on_message(shell.gateway, bus.Attach("s", 1, 5, "g1-life"), [])
    await shell.background.settle()
    shell.manager.residents[0].runner.checkpointer.put(orders.Checkpoint(1, b"state", shell.machines[0].applied))
    await shell.background.settle()
    assert len(shell.gateway.of(bus.Attached)) == 1


async def test_nobody_attached_means_that_it_is_journaled_here_after_a_while(shell: Shell) -> None:
    await left(shell)
    await left(shell, "t", gateway="")
    judge(shell)
    for session_id in "st":
        shell.board.on_message(shell.gateway, bus.Adopt(session_id, "dead-life"), [])
    await shell.background.settle()
    for resident in shell.manager.residents:
        resident.runner.checkpointer.put(orders.Checkpoint(1, b"state", shell.machines[0].applied))
    await shell.background.settle()
    assert sorted(egress.after_s for egress in shell.egresses) == [0.0, 2.0]
    assert all(facts.Detached(1) in machine.handled for machine in shell.machines)


async def test_a_living_owner_is_not_robbed(shell: Shell) -> None:
    await left(shell)
    judge(shell)
    me = Registration("shard", "me", "shard-life")
    shell.vitals.heard([me, Registration("shard", "other", "dead-life")], asyncio.get_running_loop().time())
    shell.board.on_message(shell.gateway, bus.Adopt("s", "dead-life"), [])
    await shell.background.settle()
    assert not shell.machines and not shell.inheritance.outcomes


async def test_one_that_has_died_just_now_is_inherited_as_soon_as_the_registry_says_so(shell: Shell) -> None:
    """The supervisor has taken its registration back, which the next beat would tell."""
    await left(shell)
    judge(shell)
    now = asyncio.get_running_loop().time()
    me, other = Registration("shard", "me", "shard-life"), Registration("shard", "other", "dead-life")
    shell.vitals.heard([me, other], now)
    looks: list[str] = []
    shell.manager.look_again = lambda: looks.append("look")
    shell.board.on_message(shell.gateway, bus.Adopt("s", "dead-life"), [])
    shell.manager.roster_heard()
    await shell.background.settle()
    assert looks == ["look"] and not shell.machines, "it lives, and nothing is remembered of it"
    shell.board.on_message(shell.gateway, bus.Adopt("s", "dead-life"), [])
    shell.vitals.heard([me], now)
    shell.manager.roster_heard()
    await shell.background.settle()
    assert [machine.owner for machine in shell.machines] == [2]


async def test_no_more_is_remembered_than_may_wait(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.session.manager.MAX_WAITING", 1)
    await left(shell)
    await left(shell, "t")
    judge(shell)
    now = asyncio.get_running_loop().time()
    me, other = Registration("shard", "me", "shard-life"), Registration("shard", "other", "dead-life")
    shell.vitals.heard([me, other], now)
    for session_id in ("s", "t"):
        shell.board.on_message(shell.gateway, bus.Adopt(session_id, "dead-life"), [])
    shell.vitals.heard([me], now)
    shell.manager.roster_heard()
    await shell.background.settle()
    assert [resident.session_id for resident in shell.manager.residents] == ["s"]


async def test_what_a_newer_version_has_saved_is_left_for_one_that_can_read_it(shell: Shell) -> None:
    owner = await left(shell)
    newer = msgspec.msgpack.encode({"session_id": "s", "version": STATE_VERSION + 1})
    await shell.store.sessions.checkpoint("s", owner, 8, newer)
    judge(shell)
    shell.board.on_message(shell.gateway, bus.Adopt("s", "dead-life"), [])
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"newer_version": 1} and len(shell.admission) == 0
    found = await shell.store.sessions.look_up("s")
    assert found is not None and found.owner == owner, "it is not taken, and not ended"


async def test_of_one_that_another_heir_has_taken_it_lets_go(shell: Shell) -> None:
    await left(shell)
    judge(shell)
    await shell.store.sessions.own("s", incarnation="other-heir", taken_from="dead-life")
    shell.board.on_message(shell.gateway, bus.Adopt("s", "dead-life"), [])
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"taken": 1} and len(shell.admission) == 0
    shell.board.on_message(shell.gateway, bus.Attach("s", 1, 5, "g1-life"), [])
    await shell.background.settle()
    assert shell.gateway.of(bus.OwnerChanged) == [bus.OwnerChanged("s", Owner())]


async def test_one_that_is_ours_by_the_store_is_taken_up(shell: Shell) -> None:
    await left(shell)
    await shell.store.sessions.own("s", incarnation="shard-life", taken_from="dead-life")
    shell.board.on_message(shell.gateway, bus.Attach("s", 1, 5, "g1-life"), [])
    await shell.background.settle()
    assert shell.machines[0].owner == 3 and shell.inheritance.outcomes == {"taken_up": 1}


async def test_an_heir_makes_room_for_half_as_many_again(shell: Shell) -> None:
    for n in range(4):
        await left(shell, f"s{n}")
    judge(shell)
    for n in range(4):
        shell.board.on_message(shell.gateway, bus.Adopt(f"s{n}", "dead-life"), [])
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"adopted": 3, "full": 1}
    assert len(shell.admission) == 3


async def test_what_cannot_be_read_is_over(shell: Shell) -> None:
    owner = await left(shell, saved=False)
    await shell.store.sessions.checkpoint("s", owner, 1, b"another version")
    judge(shell)
    shell.board.on_message(shell.gateway, bus.Adopt("s", "dead-life"), [])
    shell.board.on_message(shell.gateway, bus.Attach("s", 1, 5, "g1-life"), [])
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"unreadable": 1}
    assert [message.code for message in shell.gateway.of(bus.SessionRefused)] == ["session_resume_expired"]
    assert await shell.store.sessions.look_up("s") is None and len(shell.admission) == 0


async def test_many_wait_their_turn(shell: Shell) -> None:
    judge(shell)
    for n in range(3 * MAX_RUNNING):
        shell.board.on_message(FakeLink("g2", "gateway"), bus.Adopt(f"s{n}", "dead-life"), [])
        shell.board.on_message(FakeLink("g2", "gateway"), bus.Adopt(f"s{n}", "dead-life"), [])
    assert len(shell.inheritance) == 3 * MAX_RUNNING
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"gone": 3 * MAX_RUNNING} and not len(shell.inheritance)


async def test_of_one_that_was_over_its_heir_deletes_what_the_owner_had_not(shell: Shell) -> None:
    """Its owner died between its journal and its record."""
    owner = await left(shell)
    await shell.store.journal.release("s", owner)
    judge(shell)
    shell.board.on_message(shell.gateway, bus.Adopt("s", "dead-life"), [])
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"gone": 1}
    assert await shell.store.sessions.look_up("s") is None
