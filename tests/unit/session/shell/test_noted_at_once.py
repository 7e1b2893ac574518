"""A session is noted as held while it is being opened: from then on others find it if its shard dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from unit.session.shell.shell_rig import Shell

from duologue.session.due import DueSweep

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


async def test_what_is_over_is_held_until_its_keys_are_deleted(shell: Shell) -> None:
    await shell.open()
    shell.manager.residents[0].runner.finish()
    assert list(shell.manager.held()) == ["s"], "the store has not answered yet"
    await shell.background.settle()
    assert list(shell.manager.held()) == []
