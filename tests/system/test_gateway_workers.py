"""`duologue gateway --workers 2`: two complete gateways on one port, watched by a parent that nothing outlives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from system.running import CLI, RunningSystem, alive, eventually, is_ready, refusal, status, until
from system.wire import PATIENCE_S, Wire, append, audio, level, seqs, session_object
from websockets.exceptions import ConnectionClosed

from duologue.cli.temporary import free_port
from duologue.runtime.processes import die_with_parent

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

ANSWER = [{"when": "speech"}, {"speak": {"units": 3, "text": "one two three"}}, {"listen": 1}]
TALK = [{"speak": {"units": 4000, "text": "on and on"}}]


class Workers:
    """The command in a running system; its workers answer their operator at the next two ports."""

    def __init__(self, system: RunningSystem, name: str, folder: Path) -> None:
        self.system, self.name = system, name
        self.port = free_port()
        self.log = folder / f"{name}.log"
        command = [*CLI, "gateway", "--config", str(system.home / "run/duologue.toml"), "--id", name]
        command += ["--workers", "2", "--port", str(self.port), "--metrics-port", str(self.port + 1)]
        parent = os.getpid()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
            )

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def operators(self) -> tuple[int, int]:
        return self.port + 1, self.port + 2

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        return all(is_ready(port) for port in self.operators)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def records(self) -> dict[str, Any]:
        members = status("--home", str(self.system.home))["members"]
        return {member["id"]: member for member in members if member["id"].startswith(self.name)}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    with RunningSystem(tmp_path_factory.mktemp("system"), "--pipelines", "loopback") as running:
        yield running


@pytest.fixture
def workers(system: RunningSystem, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workers]:
    started = Workers(system, f"edge{abs(hash(request.node.name)) % 10**6}", tmp_path)
    try:
        until(started.ready, "both workers are ready", started.log)
        yield started
    finally:
        started.process.kill()
        started.process.wait(PATIENCE_S)


@contextlib.asynccontextmanager
async def sessions(url: str, count: int) -> AsyncIterator[list[Wire]]:
    wires = [await Wire.open(url, session_object(script=ANSWER)) for _ in range(count)]
    try:
        yield wires
    finally:
        for wire in wires:
            await wire.cut()


async def test_both_take_sessions_under_ids_of_their_own(workers: Workers) -> None:
    async with sessions(workers.url, 16):
        await eventually(
            lambda: [member["load"] > 0 for member in workers.records().values()] == [True, True],
            "both have sessions",
        )
        assert set(workers.records()) == {f"{workers.name}-1", f"{workers.name}-2"}
        assert sum(member["load"] for member in workers.records().values()) == 16


async def test_each_shows_metrics_of_itself(workers: Workers) -> None:
    for port, id in zip(workers.operators, sorted(workers.records()), strict=True):
        assert f'"{id}"' in fetched(port, "/metrics")[1]
        assert fetched(port, "/v1/models")[0] == 404, "no client's route on the operator's port"


async def test_a_session_of_one_resumes_at_any(workers: Workers) -> None:
    async with sessions(workers.url, 6) as wires:
        for wire in wires:
            await wire.cut()
        for wire in wires:
            created = wire.log[0]
            seen = max(seqs(wire.log), default=0)
            again = await Wire.resume(workers.url, created["session"]["id"], created["resume_token"], seen)
            assert (await again.read())["type"] == "session.resumed"
            await again.send(append(level(6000)))
            await again.until("response.done")
            assert len(audio(again.log)) == 3 * 3840
            await again.end()


async def test_a_killed_one_comes_back_and_the_other_serves_meanwhile(workers: Workers) -> None:
    victim = workers.children()[0]
    victim.kill()
    # Told once it is reaped: only then is its last thread gone, and its place at the port with it.
    await eventually(lambda: "starting it again" in workers.log.read_text(), "its end is seen")
    assert alive([victim]) == []
    async with sessions(workers.url, 4):
        pass
    await eventually(workers.ready, "both are ready again")
    assert victim.pid not in {child.pid for child in workers.children()}


async def test_one_that_drains_leaves_the_port_to_the_other(workers: Workers) -> None:
    assert fetched(workers.operators[0], "/drain?deadline_s=60", "POST")[0] == 202
    assert fetched(workers.operators[0], "/readyz")[0] == 503
    async with sessions(workers.url, 16):  # every one is taken: the kernel deals none to who drains
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_signal_drains_all_and_leaves_nothing(workers: Workers, number: signal.Signals) -> None:
    wires = [await Wire.open(workers.url, session_object(script=TALK)) for _ in range(6)]
    family = [psutil.Process(workers.process.pid), *workers.children()]
    workers.process.send_signal(number)
    for wire in wires:
        await wire.until("session.going_away")
        await wire.cut()
    assert await asyncio.to_thread(workers.process.wait, PATIENCE_S) == 0
    assert alive(family) == []


async def test_killed_the_parent_takes_its_workers_along(workers: Workers) -> None:
    children = workers.children()
    assert len(children) == 2
    wire = await Wire.open(workers.url, session_object(script=ANSWER))
    workers.process.kill()
    await eventually(lambda: alive(children) == [], "the workers are gone", within_s=5)
    with pytest.raises(ConnectionClosed):
        await wire.until("session.closed")


def test_a_port_where_somebody_listens_is_not_shared(workers: Workers) -> None:
    line = refusal("gateway", "--workers", "2", "--port", str(workers.port))
    assert f"127.0.0.1:{workers.port}" in line
    assert "--workers 0" in refusal("gateway", "--workers", "0", "--port", str(free_port()))


def fetched(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
