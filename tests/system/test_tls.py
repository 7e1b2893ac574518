"""`duologue up --tls`: clients that trust its authority converse over wss, others are refused by TLS itself."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.running import RunningSystem, duologue, refusal, status
from system.wire import PATIENCE_S, Wire, append, audio, level, session_object
from websockets.asyncio.client import connect

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

ANSWER = [{"when": "speech"}, {"speak": {"units": 3, "text": "one two three"}}, {"listen": 1}]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    home = tmp_path_factory.mktemp("secure")
    with RunningSystem(home, "--pipelines", "loopback,loopback-talk", "--tls") as running:
        yield running


def trusting(system: RunningSystem) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=system.state.ca)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_session_over_wss(system: RunningSystem, host: str) -> None:
    url = f"wss://{host}:{system.port}/v1/realtime?duplex=1&autostart=0"
    wire = Wire(await connect(url, ssl=trusting(system), compression=None, max_size=None, open_timeout=PATIENCE_S))
    try:
        await wire.send({"type": "session.update", "session": session_object(script=ANSWER)})
        await wire.until("session.created")
        await wire.send(append(level(6000)))
        await wire.until("response.done")
        assert len(audio(wire.log)) == 3 * 3840
        await wire.end()
    finally:
        await wire.cut()


async def test_who_does_not_trust_it_does_not_connect(system: RunningSystem) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await connect(f"wss://127.0.0.1:{system.port}/v1/realtime", open_timeout=PATIENCE_S)


def test_talk_finds_the_running_system_and_trusts_it(system: RunningSystem) -> None:
    assert system.state.url == f"wss://127.0.0.1:{system.port}"
    said = ("talk", "--model", "loopback-talk", "--say", "hello there")
    done = duologue(*said, "--home", str(system.home))
    assert done.returncode == 0, done.stderr
    done = duologue(*said, "--url", system.state.url, "--ca", system.state.ca)
    assert done.returncode == 0, done.stderr
    assert "certificate" in refusal(*said, "--url", system.state.url).lower()


def test_bench_measures_it(system: RunningSystem) -> None:
    done = duologue("bench", "--home", str(system.home), "--sessions", "2", "--seconds", "1", "--warmup", "1", "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_status_tells_where_each_gateway_answers_its_operator(system: RunningSystem) -> None:
    answer = status("--home", str(system.home))
    (gateway,) = (member for member in answer["members"] if member["kind"] == "gateway")
    assert gateway["record"]["url"] == f"https://127.0.0.1:{system.port}"
    assert gateway["record"]["metrics_url"].startswith("http://127.0.0.1:")


def test_its_own_certificate_is_kept_private(system: RunningSystem) -> None:
    assert {path.stat().st_mode & 0o777 for path in (system.home / "tls").iterdir()} == {0o600}


@pytest.mark.parametrize("lacking", ["--tls-cert", "--tls-key"])
def test_a_certificate_that_is_not_there_is_one_line(system: RunningSystem, tmp_path: Path, lacking: str) -> None:
    files = {"--tls-cert": str(system.home / "tls/cert.pem"), "--tls-key": str(system.home / "tls/key.pem")}
    files[lacking] = str(tmp_path / "none.pem")
    line = refusal("up", "--home", str(tmp_path), *(part for pair in files.items() for part in pair))
    assert files[lacking] in line and os.strerror(2) in line
