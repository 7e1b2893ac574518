"""A shard that drains: each session saved, named to its heir, and let go of without an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from unit.session.shell.shell_rig import FakeMachine, Shell, owned, through

from duologue.bus import messages as bus
from duologue.fence import Owner
from duologue.model.records import ShardRecord, encode_record
from duologue.protocol.duplex import SessionHeartbeat
from duologue.session import handing_over
from duologue.session.core import commands as facts
from duologue.session.core.engine_session import STATE_VERSION
from duologue.session.handing_over import HandOver
from duologue.store.ports import Checkpoint, Registration, StoreUnavailable

pytestmark = pytest.mark.unit


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    made = Shell()
    made.register_workers()
    yield made
    await made.close()


def hand_over(shell: Shell, writes: int = STATE_VERSION) -> HandOver:
    return HandOver(
        incarnation="shard-life",
        writes=writes,
        sessions=shell.store.sessions,
        holdings=shell.store.holdings,
        vitals=shell.vitals,
        residents=lambda: shell.manager.residents,
    )


def fleet(shell: Shell, *, accepting: bool = True) -> None:
    record = encode_record(ShardRecord((), 0, 8, accepting))
    heir = Registration("shard", "heir", "heir-life", capacity=8, extra=record)
    shell.vitals.heard([heir, Registration("shard", "me", "shard-life", extra=record)], 0.0)


async def opened(shell: Shell) -> FakeMachine:
    machine = await shell.open()
    shell.board.on_message(shell.gateway, bus.Delivered("s", owned(1), 4, through(1, 1), 1), [])
    await shell.background.settle()
    shell.gateway.clear()
    return machine


async def test_it_is_saved_named_to_its_heir_and_let_go_of(shell: Shell) -> None:
    await opened(shell)
    fleet(shell)
    moving = hand_over(shell)
    assert await moving.run(5.0)
    found = await shell.store.sessions.look_up("s")
    assert found is not None and found.owner == Owner(2, "heir-life")
    assert isinstance(await shell.store.sessions.read_checkpoint("s"), Checkpoint)
    assert shell.gateway.of(bus.OwnerChanged) == [bus.OwnerChanged("s", Owner(2, "heir-life"))]
    assert list(await shell.store.holdings.held_by("heir-life")) == ["s"]
    await shell.background.settle()
    assert await shell.store.sessions.look_up("s") is not None, "its keys are the heir's"
    assert (len(shell.manager), len(shell.admission), len(shell.hub)) == (0, 0, 0)
    assert moving.outcomes == {"handed_over": 1} and shell.manager.ended == {"handed_over": 1}


async def test_it_waits_until_nothing_is_being_said(shell: Shell) -> None:
    machine = await opened(shell)
    machine.responding = True
    fleet(shell)
    moving = hand_over(shell)
    run = asyncio.create_task(moving.run(5.0))
    await asyncio.sleep(0)
    shell.say("s", 1, SessionHeartbeat())
    assert isinstance(machine.handled[-1], facts.FromClient), "it goes on meanwhile"
    machine.responding = False
    assert await run
    assert moving.outcomes == {"handed_over": 1}


async def test_at_the_deadline_it_moves_whatever_is_being_said(shell: Shell) -> None:
    machine = await opened(shell)
    machine.responding = True
    fleet(shell)
    moving = hand_over(shell)
    assert await moving.run(0.0)
    assert moving.outcomes == {"handed_over": 1}


@pytest.mark.parametrize("accepting", [None, False])
async def test_without_an_heir_it_stays(shell: Shell, accepting: bool | None) -> None:
    await opened(shell)
    if accepting is not None:
        fleet(shell, accepting=accepting)
    assert not await hand_over(shell).run(5.0)
    assert len(shell.manager) == 1


def heir(name: str, reads: int | None) -> Registration:
    """`reads`: the checkpoints that it can go on from; None: it says nothing of that, as the first release."""
    if reads is None:
        record = msgspec.msgpack.encode({"pipelines": (), "sessions": 0, "max_sessions": 8, "accepting": True})
    else:
        record = encode_record(ShardRecord((), 0, 8, reads_state=reads, writes_state=reads))
    return Registration("shard", name, f"{name}-life", capacity=8, extra=record)


@pytest.mark.parametrize("reads", [None, 1])
async def test_nothing_is_given_to_who_could_not_read_it(shell: Shell, reads: int | None) -> None:
    """A new shard and an old one side by side: the session stays, and its client with it."""
    machine = await opened(shell)
    shell.vitals.heard([heir("old", reads)], 0.0)
    moving = hand_over(shell, writes=2)
    assert not await moving.run(5.0)
    assert moving.outcomes == {"no_reader": 1} and len(shell.manager) == 1
    found = await shell.store.sessions.look_up("s")
    assert found is not None and found.owner == Owner(1, "shard-life")
    shell.say("s", 1, SessionHeartbeat())
    assert isinstance(machine.handled[-1], facts.FromClient), "it was not even held"


@pytest.mark.parametrize("session_id", ["s", "t", "u", "v"])
async def test_of_several_it_goes_to_one_that_can_read_it(shell: Shell, session_id: str) -> None:
    await shell.open(session_id)
    await shell.background.settle()
    shell.vitals.heard([heir("a", None), heir("b", 1), heir("newer", 3), heir("d", 1)], 0.0)
    moving = hand_over(shell, writes=2)
    assert await moving.run(0.0)
    found = await shell.store.sessions.look_up(session_id)
    assert found is not None and found.owner == Owner(2, "newer-life")


async def test_one_that_writes_as_ever_gives_to_who_says_nothing(shell: Shell) -> None:
    await opened(shell)
    shell.vitals.heard([heir("old", None)], 0.0)
    moving = hand_over(shell, writes=1)
    assert await moving.run(5.0)
    assert moving.outcomes == {"handed_over": 1}


async def test_a_store_that_does_not_answer_leaves_the_session_here(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = await opened(shell)
    fleet(shell)
    monkeypatch.setattr(handing_over, "HELD_S", 0.0)

    async def away(*_: object) -> None:
        shell.say("s", 1, SessionHeartbeat())
        raise StoreUnavailable("no")

    monkeypatch.setattr(shell.store.sessions, "hand_over", away)
    moving = hand_over(shell)
    assert await moving.run(5.0)
    assert moving.outcomes == {"store_away": 1} and len(shell.manager) == 1
    assert any(isinstance(fact, facts.FromClient) for fact in machine.handled), "what came meanwhile is handled"


async def test_one_that_is_another_shards_by_now_is_let_go_of(shell: Shell) -> None:
    await opened(shell)
    fleet(shell)
    await shell.store.sessions.own("s", incarnation="other", taken_from="shard-life")
    moving = hand_over(shell)
    await moving.run(5.0)
    assert moving.outcomes == {"refused": 1} and len(shell.manager) == 0
    assert shell.gateway.of(bus.OwnerChanged) == [bus.OwnerChanged("s", Owner(2, "other"))]
