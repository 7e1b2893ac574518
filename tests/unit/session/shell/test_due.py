"""The sweep: what is held is noted, and what dead shards held is looked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from unit.session.shell.shell_rig import Shell
from unit.session.shell.test_inheriting import judge, left

from duologue.fence import Owner
from duologue.model.records import ShardRecord, encode_record
from duologue.session.due import DueSweep
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    made = Shell(max_sessions=4)
    made.register_workers()
    yield made
    await made.close()


def sweep_of(shell: Shell) -> DueSweep:
    return DueSweep(
        incarnation="shard-life",
        name="me",
        capacity=4,
        holdings=shell.store.holdings,
        sessions=shell.store.sessions,
        vitals=shell.vitals,
        inheritance=shell.inheritance,
        held=shell.manager.held,
        accepting=lambda: shell.admission.accepting,
        every_s=1.0,
        background=shell.background,
    )


async def dead_held(shell: Shell, *session_ids: str) -> None:
    await shell.store.holdings.note("dead-life", taken=session_ids)
    judge(shell)


async def test_what_is_held_is_noted_and_what_has_ended_is_not(shell: Shell) -> None:
    sweep = sweep_of(shell)
    await shell.open()
    await sweep.sweep()
    assert list(await shell.store.holdings.held_by("shard-life")) == ["s"]
    shell.manager.residents[0].runner.finish()
    await shell.background.settle()
    await sweep.sweep()
    assert list(await shell.store.holdings.held_by("shard-life")) == []


async def test_a_detached_session_of_a_dead_shard_is_taken(shell: Shell) -> None:
    await left(shell, gateway="")
    await dead_held(shell, "s", "ended-long-ago")
    await sweep_of(shell).sweep()
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"adopted": 1}
    assert list(await shell.store.holdings.held_by("dead-life")) == ["s"], "what is over is struck off"


async def test_an_attached_one_is_left_to_its_gateway_for_a_while(shell: Shell) -> None:
    await left(shell, gateway="g1-life")
    await dead_held(shell, "s")
    now = asyncio.get_running_loop().time()
    shell.vitals.heard([Registration("shard", "me", "shard-life"), Registration("gateway", "g1", "g1-life")], now)
    sweep = sweep_of(shell)
    await sweep.sweep()
    assert not len(shell.inheritance)
    sweep._dead_since["dead-life"] -= 10.0
    await sweep.sweep()
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"adopted": 1}


async def test_of_a_gateway_that_is_dead_too_nobody_waits(shell: Shell) -> None:
    await left(shell, gateway="gone-life")
    await dead_held(shell, "s")
    await sweep_of(shell).sweep()
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"adopted": 1}


def shard(name: str, life: str, reads: int, writes: int) -> Registration:
    record = encode_record(ShardRecord((), 0, 10**9, reads_state=reads, writes_state=writes))
    return Registration("shard", name, life, capacity=10**9, extra=record)


@pytest.mark.parametrize(("wrote", "heir"), [(1, "other"), (2, "me")])
async def test_who_could_not_read_it_is_no_heir_to_wait_for(shell: Shell, wrote: int, heir: str) -> None:
    """The other one is far larger, so it comes first; of a session that only we can read it does not."""
    await left(shell, gateway="")
    now = asyncio.get_running_loop().time()
    me, other = Registration("shard", "me", "shard-life"), shard("other", "other-life", 1, 1)
    for at in range(8):
        shell.vitals.heard([me, other, shard("lost", "dead-life", 2, wrote)], now - 4 + at * 0.5)
    shell.vitals.heard([me, other], now)
    await shell.store.holdings.note("dead-life", taken=["s"])
    await sweep_of(shell).sweep()
    await shell.background.settle()
    assert shell.inheritance.outcomes == ({"adopted": 1} if heir == "me" else {})


async def test_what_was_handed_over_to_us_is_taken_up(shell: Shell) -> None:
    owner = await left(shell, gateway="")
    await shell.store.sessions.hand_over("s", owner, "shard-life")
    await shell.store.holdings.note("shard-life", taken=["s"])
    judge(shell)
    await sweep_of(shell).sweep()
    await shell.background.settle()
    assert shell.inheritance.outcomes == {"taken_up": 1}


async def test_a_shard_that_takes_no_sessions_looks_for_none(shell: Shell) -> None:
    await left(shell, gateway="")
    await dead_held(shell, "s")
    shell.admission.accepting = False
    await sweep_of(shell).sweep()
    assert not len(shell.inheritance)


async def test_at_its_end_it_ends_what_came_too_late(shell: Shell) -> None:
    owner = await left(shell)
    await shell.store.sessions.hand_over("s", owner, "shard-life")
    await shell.store.holdings.note("shard-life", taken=["s"])
    ended: list[tuple[str, Owner]] = []
    await sweep_of(shell).leave(lambda session_id, owner: ended.append((session_id, owner)))
    assert ended == [("s", Owner(2, "shard-life"))]
    assert list(await shell.store.holdings.held_by("shard-life")) == []
