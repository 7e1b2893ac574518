"""A session is noted as held while it is being opened: from then on others find it if its shard dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
from unit.session.shell.shell_rig import Shell
from unit.session.shell.test_due import dead_held, sweep_of
from unit.session.shell.test_inheriting import left

from duologue.session.due import DueSweep
from duologue.store.ports import StoreUnavailable

pytestmark = pytest.mark.unit


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    made = Shell(max_sessions=4)
    made.register_workers()
    yield made
    await made.close()


async def test_what_is_being_opened_is_noted_before_any_sweep(shell: Shell) -> None:
    sweep = DueSweep(
        incarnation="shard-life",
        name="me",
        capacity=4,
        holdings=shell.store.holdings,
        sessions=shell.store.sessions,
        vitals=shell.vitals,
        inheritance=shell.inheritance,
        held=shell.manager.held,
        accepting=lambda: True,
        every_s=3600.0,
        background=shell.background,
    )
    shell.manager.takes_in = sweep.stir
    running = asyncio.create_task(sweep.run())
    await asyncio.sleep(0)
    try:
        await shell.open()
        for _ in range(20):
            await asyncio.sleep(0)
        assert list(await shell.store.holdings.held_by("shard-life")) == ["s"]
    finally:
        running.cancel()
        await asyncio.wait((running,))


async def test_a_note_waits_for_no_sweep_and_goes_ahead_of_the_session(shell: Shell) -> None:
    """The shard may be killed between any two words to the store."""
    said: list[str] = []
    holdings, sessions = shell.store.holdings, shell.store.sessions
    note, own = holdings.note, sessions.own
    never = asyncio.Event()

    async def noted(incarnation: str, *, taken: Collection[str] = (), left: Collection[str] = ()) -> None:
        said.append(f"note {' '.join(taken)}")
        await note(incarnation, taken=taken, left=left)

    async def owned(session_id: str, **how: Any) -> Any:
        said.append(f"own {session_id}")
        return await own(session_id, **how)

    async def holders() -> Any:
        await never.wait()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(holdings, "note", noted)
        patched.setattr(sessions, "own", owned)
        patched.setattr(holdings, "holders", holders)
        sweep = sweep_of(shell)
        shell.manager.takes_in = sweep.stir
        running = asyncio.create_task(sweep.sweep())
        await asyncio.sleep(0)
        try:
            await shell.open()
        finally:
            running.cancel()
            await asyncio.wait((running,))
    assert said[:2] == ["note s", "own s"]


async def test_a_note_that_the_store_did_not_take_is_made_by_the_next_sweep(shell: Shell) -> None:
    holdings = shell.store.holdings

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    sweep = sweep_of(shell)
    shell.manager.takes_in = sweep.stir
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(holdings, "note", away)
        await shell.open()
    assert list(await holdings.held_by("shard-life")) == []
    await sweep.sweep()
    assert list(await holdings.held_by("shard-life")) == ["s"]


async def test_what_is_being_taken_over_is_noted_before_its_old_note_is_struck_off(shell: Shell) -> None:
    """An heir that is killed in the middle of it must be found to have it."""
    await left(shell, gateway="")
    await dead_held(shell, "s")
    sweep = sweep_of(shell)
    shell.manager.takes_in = sweep.stir
    own = shell.store.sessions.own
    noted: list[list[str]] = []

    async def owned(session_id: str, **how: Any) -> Any:
        noted.append(list(await shell.store.holdings.held_by("shard-life")))
        return await own(session_id, **how)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shell.store.sessions, "own", owned)
        await sweep.sweep()
        await shell.background.settle()
    assert noted == [["s"]]


async def test_what_is_over_is_held_until_its_keys_are_deleted(shell: Shell) -> None:
    await shell.open()
    shell.manager.residents[0].runner.finish()
    assert list(shell.manager.held()) == ["s"], "the store has not answered yet"
    await shell.background.settle()
    assert list(shell.manager.held()) == []
