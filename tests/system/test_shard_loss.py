"""A shard that is killed, stopped or woken: its sessions go on at another one, on the same sockets."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.running import RunningSystem, eventually, status
from system.talkers import go_on, talking

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

SESSIONS = 8
HEIR = "goes on here"


@pytest.fixture
def system(tmp_path: Path) -> Iterator[RunningSystem]:
    with RunningSystem(tmp_path, "--pipelines", "loopback", "--shards", "2") as running:
        yield running


def inherited(system: RunningSystem) -> int:
    return system.log.read_text(errors="replace").count(HEIR)


def held(system: RunningSystem) -> int:
    """Sessions that shards have, by their own account."""
    members = status("--home", str(system.home))["members"]
    return sum(member["load"] for member in members if member["kind"] == "shard")


async def test_a_killed_shard_takes_no_session_along(system: RunningSystem) -> None:
    async with talking(system, SESSIONS) as talkers:
        os.kill(system.pid_of("shard-1"), signal.SIGKILL)
        await go_on(talkers, 2)
        moved = inherited(system)
        assert 0 < moved < SESSIONS
        assert all(set(talker.failures) <= {"shard_lost"} for talker in talkers)
        assert sum(len(talker.failures) for talker in talkers) <= moved
        await eventually(lambda: system.pid_of("shard-1") != 0, "shard-1 is started again")
        await go_on(talkers)


async def test_a_shard_that_wakes_up_changes_nothing_any_more(system: RunningSystem) -> None:
    async with talking(system, SESSIONS) as talkers:
        pid = system.pid_of("shard-2")
        os.kill(pid, signal.SIGSTOP)
        try:
            began = asyncio.get_running_loop().time()
            await go_on(talkers, 2)
            moved = inherited(system)
            assert moved > 0
            await asyncio.sleep(max(0.0, began + 10.0 - asyncio.get_running_loop().time()))
        finally:
            os.kill(pid, signal.SIGCONT)
        await go_on(talkers, 3)
        await eventually(lambda: held(system) == SESSIONS, "the woken shard has let go of what is not its own")
        assert inherited(system) == moved
        assert system.pid_of("shard-2") == pid


async def test_a_store_that_stands_still_is_nobodys_death(system: RunningSystem) -> None:
    store = next(process.pid for process in system.family() if "valkey" in process.name())
    async with talking(system, SESSIONS) as talkers:
        os.kill(store, signal.SIGSTOP)
        try:
            await asyncio.sleep(3.0)
            await go_on(talkers)
            await asyncio.sleep(5.0)
        finally:
            os.kill(store, signal.SIGCONT)
        await go_on(talkers, 3)
        assert inherited(system) == 0
        assert not any(talker.failures for talker in talkers)
