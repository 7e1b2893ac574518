"""A shard on standby: new sessions go elsewhere while they can, and all go on there when the active shard dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from system.running import RunningSystem, duologue, eventually, status
from system.talkers import Talker, go_on, talking

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

SESSIONS = 8


@pytest.fixture
def system(tmp_path: Path) -> Iterator[RunningSystem]:
    with RunningSystem(tmp_path, "--pipelines", "loopback", "--shards", "2", "--standby", "1") as running:
        yield running


def loads(system: RunningSystem) -> dict[str, int]:
    members = status("--home", str(system.home))["members"]
    return {member["id"]: member["load"] for member in members if member["kind"] == "shard"}


def standing_by(system: RunningSystem) -> dict[str, tuple[bool, str]]:
    """By the registrations and by the metrics of each."""
    members = status("--home", str(system.home))["members"]
    records = {member["id"]: member["record"] for member in members if member["kind"] == "shard"}
    return {name: (record["standby"], _gauge(record["metrics_url"])) for name, record in records.items()}


def _gauge(url: str) -> str:
    lines = httpx.get(url, trust_env=False).text.splitlines()
    return next(line for line in lines if line.startswith("duologue_session_standby_ratio ")).split()[1]


async def test_all_sessions_of_a_killed_shard_go_on_at_the_one_on_standby(system: RunningSystem) -> None:
    assert standing_by(system) == {"shard-1": (False, "0.0"), "shard-2": (True, "1.0")}
    shown = await asyncio.to_thread(duologue, "status", "--home", str(system.home))
    assert [line for line in shown.stdout.splitlines() if "(standby)" in line and "shard-2" in line], shown.stdout
    async with talking(system, SESSIONS) as talkers:
        await eventually(lambda: loads(system) == {"shard-1": SESSIONS, "shard-2": 0}, "the active one has all")
        os.kill(system.pid_of("shard-1"), signal.SIGKILL)
        await go_on(talkers, 2)
        assert all(set(talker.failures) <= {"shard_lost"} for talker in talkers)
        assert all(len(talker.failures) <= 1 for talker in talkers)
        await eventually(lambda: loads(system) == {"shard-1": 0, "shard-2": SESSIONS}, "the other one has all")
        await _until_new_ones_go_to(system, "shard-1")
        async with talking(system, 3):
            expected = {"shard-1": 3, "shard-2": SESSIONS}
            await eventually(lambda: loads(system) == expected, "new ones are the active one's, the moved ones stay")
            await go_on(talkers)


async def _until_new_ones_go_to(system: RunningSystem, name: str) -> None:
    """A gateway learns of a shard that was started again with its next look at the registry."""
    rest = loads(system)
    async with asyncio.timeout(60.0):
        while True:
            talker = await Talker.open(system.url)
            await eventually(lambda: sum(loads(system).values()) == sum(rest.values()) + 1, "it is registered")
            there = loads(system)[name] > rest[name]
            await talker.stop()
            await eventually(lambda: loads(system) == rest, "it is gone")
            if there:
                return


async def test_the_one_on_standby_takes_what_is_handed_over_and_gives_it_back(system: RunningSystem) -> None:
    async with talking(system, SESSIONS) as talkers:
        await _stop(system, "shard-1")
        await eventually(lambda: loads(system) == {"shard-1": 0, "shard-2": SESSIONS}, "the one on standby has all")
        await go_on(talkers)
        await _stop(system, "shard-2")
        await eventually(lambda: loads(system) == {"shard-1": SESSIONS, "shard-2": 0}, "the active one has all again")
        await go_on(talkers)
        assert not any(talker.failures for talker in talkers)


async def _stop(system: RunningSystem, name: str) -> None:
    pid = system.pid_of(name)
    os.kill(pid, signal.SIGTERM)
    await eventually(lambda: system.pid_of(name) not in (0, pid), f"{name} is started again")
