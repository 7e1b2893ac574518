"""`duologue up`: it leaves nothing behind, whatever ends it, and what crashes below it comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from system.running import RunningSystem, alive, eventually, refusal, until
from system.wire import PATIENCE_S, Wire, append, audio, level, session_object
from websockets.exceptions import ConnectionClosed, InvalidHandshake

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

CHILDREN = {"valkey", "worker-loopback-a", "worker-loopback-b", "shard-1", "shard-2", "gateway-1"}
ANSWER = [{"when": "speech"}, {"speak": {"units": 3, "text": "one two three"}}, {"listen": 1}]


async def serves(url: str) -> None:
    """A session opens, answers and closes."""
    wire = await Wire.open(url, session_object(script=ANSWER))
    try:
        await wire.send(append(level(6000)))
        await wire.until("response.done")
        assert len(audio(wire.log)) == 3 * 3840
        await wire.end()
    finally:
        await wire.cut()


# -- its end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_everything_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with RunningSystem(tmp_path, "--pipelines", "loopback") as system:
        family, sockets = system.family(), socket_folder(system)
        assert sockets.exists()
        system.process.send_signal(number)
        assert system.process.wait(PATIENCE_S) == 0
    assert alive(family) == []
    assert not (tmp_path / "run" / "state.json").exists() and not sockets.exists()
    assert "Traceback" not in system.log.read_text()


async def test_an_open_session_is_told_and_does_not_keep_it_from_stopping(tmp_path: Path) -> None:
    """It has time to go elsewhere; then its socket is closed with the code that says so."""
    script = [{"speak": {"units": 4000, "text": "on and on"}}]
    settings = tmp_path / "settings.toml"
    settings.write_text("[supervisor]\nstop_s = 6\n")
    with RunningSystem(tmp_path, "--pipelines", "loopback", "--config", str(settings)) as system:
        wire = await Wire.open(system.url, session_object(script=script))
        await wire.send(append(level(6000)))
        await wire.until("response.output_audio.delta")
        system.process.send_signal(signal.SIGTERM)
        going = await wire.until("session.going_away")
        assert going["time_left_ms"] <= 6000
        with pytest.raises(ConnectionClosed):
            await wire.until("session.closed")
        assert wire.ws.close_code == 1012
        assert await asyncio.to_thread(system.process.wait, PATIENCE_S) == 0
    assert "killed" not in system.log.read_text()


async def test_killed_it_leaves_no_process_and_the_next_start_is_clean(tmp_path: Path) -> None:
    with RunningSystem(tmp_path, "--pipelines", "loopback") as system:
        family, sockets = system.family(), socket_folder(system)
        wire = await Wire.open(system.url, session_object(script=ANSWER))
        os.kill(system.process.pid, signal.SIGKILL)
        system.process.wait(PATIENCE_S)
        await eventually(lambda: alive(family) == [], f"all of {family} are gone", within_s=5)
        with pytest.raises(ConnectionClosed):
            await wire.until("session.closed")
    assert list(sockets.iterdir()), "a killed system leaves its sockets behind"
    with RunningSystem(tmp_path, "--pipelines", "loopback", port=system.port) as again:
        await serves(again.url)
        assert again.state.supervisor == again.process.pid
        again.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(again.process.wait, PATIENCE_S) == 0


def socket_folder(system: RunningSystem) -> Path:
    return Path(system.state.redis_url.removeprefix("unix://")).parent


# -- crashed children ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    with RunningSystem(tmp_path_factory.mktemp("crashing"), "--pipelines", "loopback") as running:
        yield running


def test_the_state_tells_every_process(system: RunningSystem) -> None:
    state = system.state
    assert {process.name for process in state.processes} == CHILDREN
    assert state.supervisor == system.process.pid and state.url == system.url
    below = {child.pid for child in psutil.Process(state.supervisor).children(recursive=True)}
    assert {process.pid for process in state.processes} == below
    assert {process.kind for process in state.processes} == {"store", "worker", "shard", "gateway"}


@pytest.mark.parametrize("name", ["shard-1", "worker-loopback-b", "gateway-1", "valkey"])
async def test_a_crashed_child_comes_back_and_sessions_are_served(system: RunningSystem, name: str) -> None:
    before = system.pid_of(name)
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: system.pid_of(name) not in (0, before), f"{name} is started again")
    process = next(process for process in system.state.processes if process.name == name)
    assert process.restarts >= 1
    await eventually(system.ready, "the system is ready again")
    await served_at_last(system.url)
    assert f"{name} ended (killed by signal 9); starting it again in" in system.log.read_text()


async def served_at_last(url: str) -> None:
    """Until the dead one's registration has run out a session may still be led to it, and is refused in words."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await serves(url)
                return
            except (ConnectionClosed, InvalidHandshake, OSError, AssertionError):
                await asyncio.sleep(0.2)


def test_one_system_in_a_home(system: RunningSystem) -> None:
    line = refusal("up", "--home", str(system.home), "--port", str(system.port + 1))
    assert "already running" in line and str(system.home) in line
    until(system.ready, "the first one is unharmed")


def test_a_port_that_is_in_use(system: RunningSystem, tmp_path: Path) -> None:
    line = refusal("up", "--home", str(tmp_path), "--port", str(system.port))
    assert f"port {system.port} is in use" in line


# -- what a user can get wrong --------------------------------------------------------------------------------


def test_an_unknown_pipeline_is_named(tmp_path: Path) -> None:
    line = refusal("up", "--home", str(tmp_path), "--pipelines", "loopback,no-such-model")
    assert "no-such-model" in line


def test_a_wrong_key_in_the_settings_is_named(tmp_path: Path) -> None:
    settings = tmp_path / "duologue.toml"
    settings.write_text("[gateway]\nprot = 8080\n")
    line = refusal("up", "--home", str(tmp_path / "home"), "--config", str(settings))
    assert "prot" in line and str(settings) in line


def test_a_wrong_key_in_a_pipeline_is_named(tmp_path: Path) -> None:
    pipeline = tmp_path / "mine.toml"
    pipeline.write_text('name = "mine"\nplugin = "a:b"\nslotz = 3\nstages = []\n')
    line = refusal("up", "--home", str(tmp_path / "home"), "--pipelines", str(pipeline))
    assert "slotz" in line and str(pipeline) in line


def test_a_store_that_does_not_answer_is_named(tmp_path: Path) -> None:
    line = refusal("up", "--home", str(tmp_path), "--redis-url", "redis://127.0.0.1:1/0", "--pipelines", "loopback")
    assert "127.0.0.1:1" in line


def test_an_open_address_needs_keys(tmp_path: Path) -> None:
    line = refusal("up", "--home", str(tmp_path), "--host", "0.0.0.0", "--pipelines", "loopback")
    assert "key" in line and "--insecure" in line


def test_a_home_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refusal("up", "--home", str(tmp_path / "file" / "home"))
