"""`duologue drain`: a shard hands its sessions over, a worker has them move, and the clients keep their sockets."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from system.running import RunningSystem, duologue, eventually, refusal, status
from system.talkers import HZ, Talker, go_on, talking
from system.wire import Event, breaks, pick

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


def accepts(system: RunningSystem, name: str) -> bool:
    members = status("--home", str(system.home))["members"]
    return any(one["id"] == name and one["record"]["accepting"] for one in members)


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


def two_of(home: Path, *groups: str) -> RunningSystem:
    """A system with two workers of these groups."""
    text = (files("duologue.models.loopback") / "loopback.toml").read_text()
    for group in groups:
        text = text.replace(f'worker = "{group}"\n', f'worker = "{group}"\nreplicas = 2\n')
    (home / "loopback.toml").write_text(text)
    return RunningSystem(home, "--pipelines", str(home / "loopback.toml"), "--shards", "1")


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[RunningSystem]:
    with two_of(tmp_path, "loopback-a") as running:
        yield running


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[RunningSystem]:
    """A system with two workers of each group."""
    with two_of(tmp_path, "loopback-a", "loopback-b") as running:
        yield running


async def test_sessions_move_in_the_middle_of_speech_without_a_break_of_it(pairs: RunningSystem) -> None:
    """One long answer, which is being given all the time: what is drained is empty long before its end."""
    talkers = [await Talker.open(pairs.url, [{"listen": 2}, {"speak": {"units": 5000}}]) for _ in range(SESSIONS)]
    try:
        await hear(talkers, 10)
        for name in ("worker-loopback-a-1", "worker-loopback-b-1", "worker-loopback-b-2"):
            if name == "worker-loopback-b-2":
                os.kill(pairs.pid_of("worker-loopback-b-1"), signal.SIGTERM)  # the drained one makes room
                await eventually(lambda: accepts(pairs, "worker-loopback-b-1"), "it is back")
            assert member(pairs, name)["load"]
            await drain(pairs, name, "--deadline-s", "60")
            await hear(talkers, 10)
            assert not member(pairs, name)["load"]
        for talker in talkers:
            talker.check()
            assert not pick(talker.log, "response.done"), "it is one answer"
            assert not breaks(talker.spoken, HZ), "no unit is missing, doubled or another one"
        assert await asyncio.to_thread(moved, pairs) == {"state": 2 * SESSIONS, "rebuild": 0, "deadline": 0}
    finally:
        await asyncio.gather(*(talker.stop() for talker in talkers), return_exceptions=True)


def moved(system: RunningSystem) -> dict[str, int]:
    """How sessions left draining workers, as the shard counts them."""
    record = member(system, "shard-1")["record"]
    assert isinstance(record, dict)
    with urllib.request.urlopen(record["metrics_url"], timeout=5) as answer:
        lines = answer.read().decode()
    return {how: int(float(n)) for how, n in re.findall(r'session_moved_total\{how="(\w+)"\} (\S+)', lines)}


def deltas(talker: Talker) -> list[Event]:
    return pick(talker.log, "response.output_audio.delta")


async def hear(talkers: list[Talker], more: int) -> None:
    """Until each has been sent so many pieces of sound more."""
    due = [len(deltas(talker)) + more for talker in talkers]
    async with asyncio.timeout(60):
        while any(len(deltas(talker)) < least for talker, least in zip(talkers, due, strict=True)):
            assert not [talker.wire.ws.close_code for talker in talkers if talker.wire.ws.close_code is not None]
            await asyncio.sleep(0.1)


async def test_the_sessions_of_a_drained_worker_move_and_go_on(replicas: RunningSystem) -> None:
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
