"""`duologue drain`: a shard hands its sessions over, a worker has them move, and the clients keep their sockets."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from system.running import RunningSystem, duologue, eventually, refusal, status
from system.talkers import Talker, go_on, talking

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

SESSIONS = 6


@pytest.fixture
def system(tmp_path: Path) -> Iterator[RunningSystem]:
    with RunningSystem(tmp_path, "--pipelines", "loopback", "--shards", "2") as running:
        yield running


async def drain(system: RunningSystem, name: str, *options: str) -> None:
    done = await asyncio.to_thread(duologue, "drain", name, "--home", str(system.home), *options)
    assert (done.returncode, done.stdout) == (0, f"{name} is empty\n"), (done.stdout, done.stderr)


def member(system: RunningSystem, name: str) -> dict[str, object]:
    members = status("--home", str(system.home))["members"]
    return next(one for one in members if one["id"] == name)


def nothing_failed(talkers: list[Talker]) -> None:
    for talker in talkers:
        assert not talker.failures, talker.failures


async def test_a_drained_shard_hands_its_sessions_over(system: RunningSystem) -> None:
    async with talking(system, SESSIONS) as talkers:
        pid = system.pid_of("shard-1")
        await drain(system, "shard-1")
        await go_on(talkers, 2)
        nothing_failed(talkers)
        record = member(system, "shard-1")["record"]
        assert isinstance(record, dict) and not record["accepting"]
        assert member(system, "shard-2")["load"] == SESSIONS
        os.kill(pid, signal.SIGTERM)
        await eventually(lambda: system.pid_of("shard-1") not in (0, pid), "shard-1 is started again")
        await go_on(talkers)
        nothing_failed(talkers)


async def test_a_shard_that_is_asked_to_stop_hands_its_sessions_over(system: RunningSystem) -> None:
    async with talking(system, SESSIONS) as talkers:
        pid = system.pid_of("shard-2")
        os.kill(pid, signal.SIGTERM)
        await go_on(talkers, 2)
        await eventually(lambda: system.pid_of("shard-2") not in (0, pid), "shard-2 is started again")
        await go_on(talkers)
        nothing_failed(talkers)


def test_who_can_only_reach_a_process_cannot_drain_it(system: RunningSystem) -> None:
    for name in ("shard-1", "worker-loopback-a"):
        record = member(system, name)["record"]
        assert isinstance(record, dict) and not record["operator_token"], "it is shown to nobody"
        answer = httpx.post(record["metrics_url"].removesuffix("/metrics") + "/drain", trust_env=False)
        assert answer.status_code == 401
        record = member(system, name)["record"]
        assert isinstance(record, dict) and record["accepting"]


async def test_what_is_not_there_cannot_be_drained(system: RunningSystem) -> None:
    told = await asyncio.to_thread(refusal, "drain", "shard-9", "--home", str(system.home))
    assert told == "duologue drain: no process shard-9 is registered; `duologue status` shows those that are"


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[RunningSystem]:
    """A system with two workers for the first stages."""
    written = (files("duologue.models.loopback") / "loopback.toml").read_text()
    text = written.replace('worker = "loopback-a"\n', 'worker = "loopback-a"\nreplicas = 2\n')
    (tmp_path / "loopback.toml").write_text(text)
    with RunningSystem(tmp_path, "--pipelines", str(tmp_path / "loopback.toml"), "--shards", "1") as running:
        yield running


async def test_the_sessions_of_a_drained_worker_move_at_the_end_of_their_turns(replicas: RunningSystem) -> None:
    async with talking(replicas, SESSIONS) as talkers:
        assert member(replicas, "worker-loopback-a-1")["load"] and member(replicas, "worker-loopback-a-2")["load"]
        await drain(replicas, "worker-loopback-a-1")
        await go_on(talkers, 2)
        nothing_failed(talkers)
        assert member(replicas, "worker-loopback-a-1")["load"] == 0


async def test_what_is_being_said_at_the_deadline_ends(replicas: RunningSystem) -> None:
    async with talking(replicas, SESSIONS) as talkers:
        await drain(replicas, "worker-loopback-a-2", "--deadline-s", "0")
        await go_on(talkers, 2)
        for talker in talkers:
            assert set(talker.failures) <= {"worker_drained"}
