"""Cases of operation in one system of three gateways: restarts, hung stores, and processes that come back."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from system.running import RunningSystem, eventually, is_ready, status, until
from system.talkers import SCRIPT, go_on, talking
from system.wire import Wire, append, level, pick, seqs, session_object
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

GATEWAYS, SESSIONS = 3, 24
RETRY_S = 0.5
ANSWER = [{"when": "speech"}, {"speak": {"units": 2, "text": "one two"}}, {"listen": 1}]


class Fleet:
    """The system, and the addresses of its gateways."""

    def __init__(self, system: RunningSystem) -> None:
        self.system = system
        self.ports = [system.port + number for number in range(GATEWAYS)]
        self.urls = [f"ws://127.0.0.1:{port}" for port in self.ports]
        self.wait_ready()

    def wait_ready(self) -> None:
        until(lambda: all(map(is_ready, self.ports)), "every gateway is ready", self.system.log)

    def members(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in status("--home", str(self.system.home))["members"] if one["kind"] == kind]

    async def restarted(self, name: str, number: signal.Signals) -> None:
        """End this process, and wait until the supervisor has another one of that name."""
        pid = self.system.pid_of(name)
        os.kill(pid, number)
        await eventually(lambda: self.system.pid_of(name) not in (0, pid), f"{name} is started again")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings = tmp_path_factory.mktemp("settings") / "duologue.toml"
    settings.write_text("[gateway]\ndrain_s = 1.0\n")
    options = ("--pipelines", "loopback", "--gateways", str(GATEWAYS), "--shards", "2", "--config", str(settings))
    with RunningSystem(tmp_path_factory.mktemp("fleet"), *options) as system:
        yield Fleet(system)


class Roamer:
    """A client as many are written: when its socket closes it waits for a fixed time, and resumes at the next one."""

    def __init__(self, fleet: Fleet, at: int, wire: Wire) -> None:
        self.fleet, self.at, self.wire = fleet, at, wire
        created = wire.log[0]
        self.id, self.token = str(created["session"]["id"]), str(created["resume_token"])
        self.seqs = seqs(wire.log)
        self.codes: list[int | None] = []
        self.resumes: Counter[str] = Counter()
        self.told: list[str] = []
        self._work = asyncio.create_task(self._run())
        self._speech = asyncio.create_task(self._speak())

    @classmethod
    async def open(cls, fleet: Fleet, at: int) -> Roamer:
        return cls(fleet, at, await Wire.open(fleet.urls[at], session_object(script=SCRIPT)))

    async def _speak(self) -> None:
        while True:
            try:
                await self.wire.send(append(level(6000)))
            except ConnectionClosed:
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(0.2)

    async def _run(self) -> None:
        while True:
            try:
                while True:
                    event = await self.wire.read()
                    self.told.append(event["type"])
                    self.seqs += seqs([event])
            except ConnectionClosed:
                self.codes.append(self.wire.ws.close_code)
                await self._come_back()

    async def _come_back(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            self.at = (self.at + 1) % GATEWAYS
            last = self.seqs[-1] if self.seqs else 0
            try:
                wire = await Wire.resume(self.fleet.urls[self.at], self.id, self.token, last)
                answer = await wire.read()
            except (ConnectionClosed, OSError, InvalidHandshake) as error:
                status = error.response.status_code if isinstance(error, InvalidStatus) else 0
                self.resumes["draining" if status == 503 else "refused connection"] += 1
                continue
            if answer["type"] == "session.resumed":
                self.resumes["resumed"] += 1
                self.token, self.wire = str(answer["resume_token"]), wire
                return
            self.resumes[answer["error"]["code"]] += 1
            assert answer["error"]["retry_after_ms"] > 0, answer

    async def stop(self) -> None:
        for task in (self._work, self._speech):
            task.cancel()
        await asyncio.wait((self._work, self._speech))
        await self.wire.cut()


async def test_ops_06_any_gateway_resumes_any_session_every_time(fleet: Fleet) -> None:
    wire = await Wire.open(fleet.urls[0], session_object(script=ANSWER))
    session_id, token = wire.log[0]["session"]["id"], wire.log[0]["resume_token"]
    for number in range(100):
        await wire.cut()
        wire = await Wire.resume(fleet.urls[number % GATEWAYS], session_id, token, max(seqs(wire.log), default=0))
        resumed = await wire.read()
        assert resumed["type"] == "session.resumed", (number, resumed)
        token = resumed["resume_token"]
        await wire.send({"type": "session.heartbeat"})
        await wire.until("session.heartbeat_ack")
    await wire.send(append(level(6000)))
    await wire.until("response.done")
    await wire.end()


async def test_ops_06_a_hung_store_stops_neither_health_nor_speech_and_a_resume_is_told_to_wait(fleet: Fleet) -> None:
    async with talking(fleet.system, 4) as talkers:
        away = await Wire.open(fleet.urls[1], session_object(script=ANSWER))
        session_id, token = away.log[0]["session"]["id"], away.log[0]["resume_token"]
        last = max(seqs(away.log), default=0)
        await away.cut()
        store = fleet.system.pid_of("valkey")
        os.kill(store, signal.SIGSTOP)
        try:
            for port in fleet.ports:
                answer = await asyncio.to_thread(_health, port)
                assert answer == 200
            refused = await Wire.resume(fleet.urls[1], session_id, token, last)
            told = await refused.read()
            assert (told["type"], told["error"]["code"]) == ("error", "runtime_resume_failed"), told
            assert told["error"]["retry_after_ms"] > 0 and told["error"]["retryable"]
            await go_on(talkers, 2)
        finally:
            os.kill(store, signal.SIGCONT)
        async with asyncio.timeout(60):
            while True:
                again = await Wire.resume(fleet.urls[2], session_id, token, last)
                if (await again.read())["type"] == "session.resumed":
                    break
                await asyncio.sleep(RETRY_S)
        await again.end()
    await eventually(lambda: all(map(is_ready, fleet.ports)), "every gateway is ready again")


def _health(port: int) -> int:
    """Within a second, or an exception."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
        return int(answer.status)


async def test_ops_03_a_stopped_gateway_tells_its_clients_why_before_it_is_gone(fleet: Fleet) -> None:
    silent, busy = [await Wire.open(fleet.urls[2], session_object(script=SCRIPT)) for _ in range(2)]
    for _ in range(5):
        await busy.send(append(level(6000)))
    await busy.until("response.output_audio.delta")
    stock = await Wire.dial(fleet.urls[2])
    stopping = asyncio.create_task(fleet.restarted("gateway-3", signal.SIGTERM))
    for wire in (silent, busy):
        going = await wire.until("session.going_away")
        assert 0 < going["time_left_ms"] <= 1000
        with pytest.raises(ConnectionClosed):
            await wire.until("session.closed")
        assert (wire.ws.close_code, wire.ws.close_reason) == (1012, "service restart")
    await stock.ws.wait_closed()
    assert stock.ws.close_code == 1012
    await stopping
    for wire in (silent, busy):
        created = wire.log[0]
        again = await Wire.resume(fleet.urls[0], created["session"]["id"], created["resume_token"], max(seqs(wire.log)))
        assert (await again.read())["type"] == "session.resumed"
        await again.end()
    await eventually(lambda: is_ready(fleet.ports[2]), "it is ready again")


async def test_ops_01_a_rolling_restart_of_all_gateways_loses_nobody(fleet: Fleet) -> None:
    roamers = [await Roamer.open(fleet, number % GATEWAYS) for number in range(SESSIONS)]
    try:
        for name, port in zip(("gateway-1", "gateway-2", "gateway-3"), fleet.ports, strict=True):
            await fleet.restarted(name, signal.SIGTERM)
            await eventually(lambda: is_ready(port), f"{name} is ready again")  # noqa: B023 - it is over in this round
            most = {one["id"]: (one["load"], one["capacity"]) for one in fleet.members("shard")}
            assert all(load <= capacity for load, capacity in most.values()), most
        await eventually(
            lambda: sum(one["load"] for one in fleet.members("gateway")) == SESSIONS, "all are attached again"
        )
        heard = [len(roamer.seqs) for roamer in roamers]
        await eventually(
            lambda: all(len(one.seqs) > before for one, before in zip(roamers, heard, strict=True)), "all hear more"
        )
    finally:
        await asyncio.gather(*(roamer.stop() for roamer in roamers))
    for roamer in roamers:
        assert roamer.seqs == list(range(1, roamer.seqs[-1] + 1)), "nothing is missing, nothing came twice"
        assert set(roamer.codes) <= {1012}, roamer.codes
        assert not {"session.closed", "session.expired", "session.resync_required"} & set(roamer.told)
    resumes: Counter[str] = sum((roamer.resumes for roamer in roamers), Counter())
    assert resumes["resumed"] >= SESSIONS, "each gateway had its third of them"
    assert set(resumes) <= {"resumed", "draining", "refused connection", "runtime_resume_failed"}, resumes


async def test_ops_08_a_worker_that_comes_back_under_its_name_is_another_one_and_answers(fleet: Fleet) -> None:
    before = {one["id"]: one["record"] for one in fleet.members("worker")}
    async with talking(fleet.system, 4) as talkers:
        for name in sorted(before):
            await fleet.restarted(name, signal.SIGKILL)
            await go_on(talkers, 2)
        assert all(set(talker.failures) <= {"worker_lost"} for talker in talkers)
    assert {one["id"] for one in fleet.members("worker")} == set(before), "the names are the same"
    # The sessions that lived went on without asking the roster, which their gateway reads once a second.
    await eventually(lambda: is_ready(fleet.ports[0]), "the gateway has heard of it")
    fresh = await Wire.open(fleet.urls[0], session_object(script=ANSWER))
    await fresh.send(append(level(6000)))
    await fresh.until("response.done")
    assert pick(fresh.log, "error") == []
    await fresh.end()
    await eventually(lambda: not sum(one["load"] for one in fleet.members("worker")), "the old life holds no slot")


async def test_obs_01_metrics_are_those_of_the_living_however_many_died(fleet: Fleet) -> None:
    wires = [await Wire.open(fleet.urls[0], session_object(script=ANSWER)) for _ in range(3)]
    before = {path for path in fleet.system.home.rglob("*") if path.is_file()}
    for _ in range(5):
        await fleet.restarted("gateway-2", signal.SIGKILL)
        await eventually(lambda: is_ready(fleet.ports[1]), "it is ready again")
        assert [_attached(port) for port in fleet.ports] == [3, 0, 0], "no dead process is counted on"
    await eventually(lambda: len(fleet.members("gateway")) == GATEWAYS, "each gateway is registered once")
    after = {path for path in fleet.system.home.rglob("*") if path.is_file()}
    assert after - before == set(), "no process leaves a file of its numbers behind"
    for wire in wires:
        await wire.end()
    await eventually(lambda: [_attached(port) for port in fleet.ports] == [0, 0, 0], "all of them have gone")


def _attached(port: int) -> int:
    """Sessions attached to the gateway there, as it tells Prometheus."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    values = [line.split()[-1] for line in lines if line.startswith("duologue_gateway_attached_sessions{")]
    return round(sum(map(float, values)))
