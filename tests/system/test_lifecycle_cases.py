"""Faults that users reported of the ends of sessions and of servers elsewhere, at real processes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import psutil
import pytest
from soak.endings import reset
from system.conftest import TwoGateways
from system.held import held
from system.running import CLI, PATIENCE_S, RunningSystem, alive, eventually, until
from system.talkers import go_on, talking
from system.wire import Wire, append, level, pick, session_object
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from duologue.cli.home import Home
from duologue.cli.temporary import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

# -- LIF-01 -----------------------------------------------------------------------------------------------


async def read_out(wire: Wire) -> None:
    """To the end, which is behind all that was sent."""
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await wire.ws.recv()


async def fin(wire: Wire) -> None:
    """The end of the TCP stream, without a close frame."""
    wire.ws.transport.write_eof()
    await read_out(wire)


async def rst(wire: Wire) -> None:
    reset(wire)


def frame(code: int) -> Callable[[Wire], Awaitable[None]]:
    async def close(wire: Wire) -> None:
        await asyncio.gather(wire.ws.close(code), read_out(wire))

    return close


GOINGS = (rst, fin, frame(1000), frame(1001), frame(4000))


async def goes(url: str, number: int, chance: random.Random) -> None:
    """Speak and be spoken to, and go at any moment, with input queued."""
    session = {**session_object(script=[{"speak": {"units": 400, "text": "on"}}]), "disconnect_grace_s": 1}
    wire = await Wire.open(url, session)
    for _ in range(chance.randrange(12)):
        await wire.send(append(level(6000)))
    await asyncio.sleep(chance.random() * 0.2)
    with contextlib.suppress(ConnectionClosed):
        await GOINGS[number % len(GOINGS)](wire)


async def test_lif_01_the_way_a_client_goes_hurts_nobody_else(served: TwoGateways) -> None:
    chance = random.Random(1)
    processes = {process.name: process.pid for process in served.system.state.processes}
    async with talking(served.system, 3) as talkers:
        for start in range(0, 60, 6):
            await asyncio.gather(*(goes(served.urls[n % 2], n, chance) for n in range(start, start + 6)))
        await go_on(talkers)
        await eventually(lambda: held(served.system.home)["sessions"] == 3, "those that went are over")
        # What a worker holds is told by the worker, a beat of its own after the shard's.
        await eventually(lambda: held(served.system.home)["slots"] == 3 * 4, "each stage has had one end of each")
        await go_on(talkers)
    assert {process.name: process.pid for process in served.system.state.processes} == processes
    await eventually(lambda: held(served.system.home)["keys"] == [], "nothing comes back to life")


# -- LIF-04 -----------------------------------------------------------------------------------------------


async def test_lif_04_a_mute_client_does_not_hold_a_place_for_ever(served: TwoGateways) -> None:
    """It answers every ping, so its connection lives; it says nothing, so its session does not."""
    opened = [await Wire.open(served.urls[n % 2], {**session_object(), "idle_timeout_s": 2}) for n in range(10)]
    assert opened[0].log[0]["session"]["idle_timeout_s"] == 2
    for wire in opened:
        expired = await wire.until("session.expired")
        assert expired["reason"] == "idle_ttl_expired"
        await wire.ws.wait_closed()
        assert wire.ws.close_code == 1000
    await eventually(lambda: held(served.system.home)["slots"] == 0, "the places are back")


# -- LIF-07 -----------------------------------------------------------------------------------------------

MAX_S = 4


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """Sessions last a few seconds."""
    folder = tmp_path_factory.mktemp("short")
    settings = folder / "short.toml"
    settings.write_text(f'pipelines = ["loopback"]\n[session]\nmax_session_s = {MAX_S}\n[gateway]\ndrain_s = 2\n')
    with RunningSystem(folder / "home", "--config", str(settings), "--shards", "1") as system:
        yield system


async def test_lif_07_the_maximum_of_a_session_is_told_before_it_is_reached(short: RunningSystem) -> None:
    wire = await Wire.open(short.url, session_object(script=[{"listen": 1}]))
    created = wire.log[0]
    session = created["session"]
    assert session["max_session_s"] == MAX_S
    assert 0 <= session["expires_at"] - time.time() + 1 <= MAX_S + 2
    expiring = await wire.until("session.expiring")
    assert "time_left_ms" in expiring, expiring
    expired = await wire.until("session.expired")
    assert expired["reason"] == "max_session_expired"
    await wire.ws.wait_closed()
    assert wire.ws.close_code == 1001 and wire.ws.close_reason
    again = await Wire.resume(short.url, session["id"], created["resume_token"], 1)
    assert (await again.read())["error"]["code"] == "session_resume_expired"
    await again.ws.wait_closed()


async def test_lif_07_a_client_of_openai_is_told_so_by_an_error(short: RunningSystem) -> None:
    """Such a client has `expires_at`, then an `error` with the code, then the close; its token is dead by then."""

    async def dial(**query: str) -> Wire:
        address = f"{short.url}/v1/realtime?{urlencode({'model': 'loopback', **query})}"
        return Wire(await connect(address, open_timeout=PATIENCE_S, ping_interval=None))

    wire = await dial()
    created = await wire.read()
    session = created["session"]
    assert 0 <= session["expires_at"] - time.time() + 1 <= MAX_S + 2
    await wire.send({"type": "session.update", "session": {"type": "realtime"}})
    while (event := await wire.read())["type"] != "error":
        assert event["type"] == "session.updated", event
    assert (event["error"]["code"], event["error"]["retryable"]) == ("session_expired", False)
    with pytest.raises(ConnectionClosed):
        await wire.read()
    assert (wire.ws.close_code, wire.ws.close_reason) == (1001, "max_session_expired")
    again = await dial(resume_session=session["id"], resume_token=created["resume_token"], last_seq="1")
    while (event := await again.read())["type"] != "error":
        assert event["type"] == "session.created", event
    assert event["error"]["code"] == "session_resume_expired"
    await again.ws.wait_closed()


# -- LIF-08 -----------------------------------------------------------------------------------------------


async def test_lif_08_a_server_with_clients_stops_in_time_and_leaves_nothing(short: RunningSystem) -> None:
    """Twenty clients that do not go away by themselves; it is the last test of this system."""
    family, sockets = short.family(), Home(short.home).socket_dir
    assert any(sockets.iterdir())
    wires = [await Wire.open(short.url, session_object(script=[{"listen": 1}])) for _ in range(20)]
    short.process.send_signal(signal.SIGTERM)
    for wire in wires:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await wire.read()
        assert wire.ws.close_code in (1001, 1012)
        assert pick(wire.log, "session.going_away", "session.expired", "session.closed")
    assert await asyncio.to_thread(short.process.wait, PATIENCE_S) == 0
    assert alive(family) == [] and not sockets.exists()


@pytest.mark.parametrize("after_s", [0.0, 0.7, 1.5, 2.5])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_lif_08_a_server_that_starts_can_be_stopped(tmp_path: Path, after_s: float, number: signal.Signals) -> None:
    """At any moment of its start: no process and no socket file is left."""
    home = tmp_path / "home"
    command = [*CLI, "up", "--home", str(home), "--port", str(free_port()), "--pipelines", "loopback"]
    with (tmp_path / "up.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: (home / "run").exists(), "it has begun", tmp_path / "up.log")
        time.sleep(after_s)
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(number)
        assert process.wait(PATIENCE_S) in (0, 1, 130, -number), (tmp_path / "up.log").read_text()
    finally:
        process.kill()
        process.wait()
    until(lambda: alive(family) == [], "every process is gone")
    sockets = Home(home).socket_dir
    assert not sockets.exists() or not [file for file in sockets.iterdir() if file.is_socket()]
    assert "Traceback" not in (tmp_path / "up.log").read_text()
