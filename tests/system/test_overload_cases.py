"""Faults that users reported of overload elsewhere, at real processes that may serve little."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from soak.endings import ENDINGS
from soak.leaks import SETTINGS, Soak, parser
from system.conftest import TwoGateways
from system.held import held
from system.running import RunningSystem, eventually, status
from system.talkers import go_on, talking
from system.wire import PATIENCE_S, Event, Wire, append, level, pick, seqs, session_object
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

PLACES = 4
SMALL = f"""
pipelines = ["loopback"]
[session]
max_sessions = {PLACES}
max_input_age_s = 1.0
disconnect_grace_s = 1.0
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """One gateway, one shard, few places, and little patience with a slow model."""
    folder = tmp_path_factory.mktemp("small")
    settings = folder / "small.toml"
    settings.write_text(SMALL)
    with RunningSystem(folder / "home", "--config", str(settings), "--shards", "1") as system:
        yield system


async def admitted(system: RunningSystem, session: Event) -> Wire:
    """Again after the time that a refusal named: a gateway hears of places that are free again with the next beat."""
    while True:
        try:
            wire = await Wire.dial(system.url, autostart="0")
        except InvalidStatus as error:
            await asyncio.sleep(int(error.response.headers["Retry-After"]))
            continue
        await wire.send({"type": "session.update", "session": session})
        told = await wire.read()
        if told["type"] == "session.created":
            return wire
        assert told["error"]["code"] == "resource_exhausted", told
        await asyncio.sleep(told["error"]["retry_after_ms"] / 1000)


@contextlib.asynccontextmanager
async def sessions(system: RunningSystem, count: int, **loopback: Any) -> AsyncIterator[list[Wire]]:
    """So many of them, which leave nothing."""
    wires: list[Wire] = []
    try:
        for _ in range(count):
            wires.append(await admitted(system, session_object(**loopback)))
        yield wires
    finally:
        for wire in wires:
            with contextlib.suppress(ConnectionClosed):
                await wire.send({"type": "session.close"})
            await wire.cut()
        await eventually(lambda: held(system.home)["sessions"] == 0, "the sessions are over")


# -- OVL-01 -----------------------------------------------------------------------------------------------


async def refused(url: str, path: str) -> str:
    """How one client more is refused: by a status before it is connected, or by a coded event. Never is it greeted."""
    try:
        ws = await connect(f"{url}{path}", compression=None)
    except InvalidStatus as error:
        assert error.response.status_code == 503
        assert int(error.response.headers["Retry-After"]) >= 1
        return "503"
    wire = Wire(ws)
    await wire.send({"type": "session.update", "session": session_object()})
    told = await wire.read()
    assert (told["type"], told["error"]["code"]) == ("error", "resource_exhausted"), told
    assert told["error"]["retryable"] is True and told["error"]["retry_after_ms"] >= 500
    await wire.ws.wait_closed()
    assert wire.ws.close_code == 1013
    return "1013"


async def test_ovl_01_one_client_too_many_is_refused_before_it_is_greeted(small: RunningSystem) -> None:
    """At once by the shard, whose answer is final; as soon as the gateway knows, before the socket is accepted."""
    async with sessions(small, PLACES):
        assert await refused(small.url, "/v1/realtime?duplex=1&autostart=0") in ("503", "1013")
        await eventually(lambda: held(small.home)["sessions"] == PLACES, "the gateway knows that there is no place")
        for path in ("/v1/realtime?duplex=1", "/v1/duplex", "/v1/realtime", "/v1/realtime?model=loopback"):
            how = ""
            for _ in range(40):  # the gateway hears of it with the next beat of the shard
                if (how := await refused(small.url, path)) == "503":
                    break
                await asyncio.sleep(0.1)
            assert how == "503", path
    async with sessions(small, PLACES):
        """The places are there again."""


# -- OVL-02 -----------------------------------------------------------------------------------------------


async def test_ovl_02_places_come_back_however_sessions_end(tmp_path: Path) -> None:
    """Each ending three times, two processes killed meanwhile; `make leaks` does it by the thousand."""
    settings = tmp_path / "leaks.toml"
    settings.write_text(SETTINGS)
    options = ("--config", str(settings), "--gateways", "2", "--standby", "0")
    with RunningSystem(tmp_path / "home", *options) as system:
        soaking = parser().parse_args(["--cycles", str(3 * len(ENDINGS)), "--kills", "0"])
        soak = Soak(TwoGateways(system), soaking)
        await soak.batch(list(ENDINGS), 0)
        await asyncio.to_thread(soak.rest)
        assert soak.faults == [] and len(soak.done) == len(ENDINGS)
        await soak.batch(list(ENDINGS) * 2, 2)
        await asyncio.to_thread(soak.rest)
        assert sum(soak.killed.values()) == 2


# -- OVL-03 -----------------------------------------------------------------------------------------------


async def deaf(url: str) -> Wire:
    """A client that asks for a long answer in a large format, sends all its input at once and reads nothing of it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = url.removeprefix("ws://").split(":")
    sock.connect((host, int(port)))
    ws = await connect(f"{url}/v1/realtime?duplex=1&autostart=0", sock=sock, compression=None, max_size=None)
    wire = Wire(ws)
    session = session_object(script=[{"speak": {"units": 4000, "text": "on and on"}}])
    session["audio"]["output"] = {"format": {"type": "pcm_f32le", "rate": 48_000}}
    session["output_audio_format"] = "pcm_f32le"
    await wire.send({"type": "session.update", "session": session})
    await wire.until("session.created")
    ws.transport.pause_reading()
    return wire


async def test_ovl_03_who_does_not_read_loses_its_own_session_and_is_told(served: TwoGateways) -> None:
    """Its output is bounded: beyond the limit its session ends. Others hear no difference, and nothing is left."""
    async with talking(served.system, 3) as talkers:
        wires = [await deaf(served.urls[0]) for _ in range(3)]
        for wire in wires:
            for _ in range(30):
                await wire.send(append(level(6000, 2000)))
        await go_on(talkers)
        await eventually(lambda: held(served.system.home)["sessions"] == 3, "the sessions of the deaf have ended")
        await go_on(talkers)
        for wire in wires:
            wire.ws.transport.resume_reading()
            await read_all(wire)
    await eventually(lambda: held(served.system.home)["sessions"] == 0, "everything has been given back")


async def read_all(wire: Wire) -> None:
    """What was sent before has no gap; how it ended is told by an event or, where that was not read, by the socket."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await wire.read()
    numbers = seqs(wire.log)
    assert numbers == list(range(1, len(numbers) + 1))
    errors = [event["error"]["code"] for event in pick(wire.log, "error")]
    assert errors == ["output_backpressure"] or wire.ws.close_code in (1013, 1006), (errors, wire.ws.close_code)


# -- OVL-07 -----------------------------------------------------------------------------------------------

COMPUTE_MS, UNIT_S = 100, 0.08
AGE_UNITS, WINDOW = 13, 16
"""`max_input_age_s` in units, and what may be in the stages besides."""


class Hasty:
    """A client that talks in real time to a model that needs longer."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.accepted = self.refused = self.answered = self.most = 0

    async def talk(self, units: int) -> None:
        reading = asyncio.create_task(self._read())
        due = asyncio.get_running_loop().time()
        for _ in range(units):
            await self.wire.send(append(level(6000)))
            self.accepted += 1
            due += UNIT_S
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        reading.cancel()
        await asyncio.wait((reading,))

    async def _read(self) -> None:
        while True:
            self._event(await self.wire.read())

    def _event(self, event: Event) -> None:
        if event["type"] == "error":
            error = event["error"]
            assert (error["code"], error["param"], error["retryable"]) == ("input_backpressure", "audio", True), error
            assert error["retry_after_ms"] > 0
            self.refused += 1
        self.answered += event["type"] == "response.listen"
        self.most = max(self.most, self.accepted - self.refused - self.answered)


async def test_ovl_07_a_model_that_is_too_slow_piles_up_no_latency(small: RunningSystem) -> None:
    """Units of 80 ms that take 100: what waits is capped, further sound is refused by name, and nobody more is let
    in. Without a cap there would be 40 units in the queue at the end, and ever more."""
    async with sessions(small, 2, stage_ms=[COMPUTE_MS]) as wires:
        hasty = [Hasty(wire) for wire in wires]
        talks = asyncio.gather(*(one.talk(220) for one in hasty))
        await eventually(lambda: all(one.refused for one in hasty), "sound is refused", PATIENCE_S)
        assert await refused(small.url, "/v1/realtime?duplex=1&autostart=0") == "1013"
        await talks
        for one in hasty:
            assert one.most <= AGE_UNITS + WINDOW + 8, (one.most, one.refused)
        rejected = re.search(r'admissions_refused_total\{reason="model_behind"\} (\d+)', shard_metrics(small))
        assert rejected and int(rejected[1]) >= 1
    async with sessions(small, 1):
        """It is fast again: who comes is let in."""


def shard_metrics(system: RunningSystem) -> str:
    members = status("--home", str(system.home))["members"]
    (url,) = [member["record"]["metrics_url"] for member in members if member["kind"] == "shard"]
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read(), "utf-8")
