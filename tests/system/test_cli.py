"""The `duologue` command beside a running system: what it prints, and how it refuses."""

from __future__ import annotations

import asyncio
import shutil
import wave
from collections.abc import Callable
from pathlib import Path

import pytest
from system.conftest import TwoGateways
from system.running import RunningSystem, duologue, refusal
from system.wire import Wire, session_object

from duologue.cli.home import Home

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

NOBODY = "ws://127.0.0.1:1"


@pytest.fixture
def question(tmp_path: Path) -> Path:
    """Half a second of sound."""
    path = tmp_path / "question.wav"
    write_wav(path, b"\x10\x20" * 8000)
    return path


def write_wav(path: Path, pcm: bytes, *, width: int = 2) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(width)
        file.setframerate(16_000)
        file.writeframes(pcm)


# -- status, doctor, bench --------------------------------------------------------------------------------


async def test_status_shows_processes_and_load(served: TwoGateways) -> None:
    wire = await Wire.open(served.urls[0], session_object(script=[{"listen": 1}]))
    done = await asyncio.to_thread(duologue, "status", "--home", str(served.system.home))
    await wire.end()
    assert done.returncode == 0, done.stderr
    for name in ("valkey", "worker-loopback-a", "shard-1", "shard-2", "gateway-1", "gateway-2"):
        assert name in done.stdout
    assert "loopback-talk" in done.stdout and str(served.system.pid_of("gateway-2")) in done.stdout


def test_status_without_a_system_says_how_to_start_one(tmp_path: Path) -> None:
    line = refusal("status", "--home", str(tmp_path))
    assert str(tmp_path) in line and "duologue up" in line


def test_status_of_a_system_that_was_killed(tmp_path: Path) -> None:
    with RunningSystem(tmp_path, "--pipelines", "loopback") as system:
        system.process.kill()
        system.process.wait(30)
    assert "no system runs" in refusal("status", "--home", str(tmp_path))
    shutil.rmtree(Home(tmp_path).socket_dir)  # as the next start in this home would


def test_doctor_names_what_it_looked_at(served: TwoGateways) -> None:
    done = duologue("doctor", "--port", str(served.system.port))
    for what in ("Python 3.", "a store to embed", f"port {served.system.port}", "model cascade"):
        assert what in done.stdout, done.stdout
    assert "Traceback" not in done.stderr


def test_a_small_bench_prints_its_table_and_the_floor(tmp_path: Path) -> None:
    arguments = "--model loopback --sessions 4 --seconds 2 --rounds 2 --warmup 1 --floor".split()
    done = duologue("bench", *arguments, "--home", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    for row in ("unit to audio, p50", "holes in the numbers", "CPU shard", "times the floor", "by rounds"):
        assert row in done.stdout, done.stdout
    answered, sent = next(row for row in done.stdout.splitlines() if "units answered" in row).split()[4].split("/")
    assert answered == sent and int(sent) > 4 * 2 * 2 * 10, "of both rounds together"


def test_bench_against_nobody() -> None:
    assert NOBODY in refusal("bench", "--url", NOBODY, "--sessions", "1", "--seconds", "1")


# -- talk ---------------------------------------------------------------------------------------------------


def test_talk_to_a_model_that_does_not_answer(served: TwoGateways, question: Path) -> None:
    """Without a script the synthetic model only listens."""
    arguments = ("--url", served.urls[0], "--model", "loopback", "--wait", "1")
    assert "no answer within 1 s" in refusal("talk", "--wav", str(question), *arguments)


def test_talk_to_a_server_that_is_not_there(question: Path) -> None:
    assert f"cannot connect to {NOBODY}" in refusal("talk", "--wav", str(question), "--url", NOBODY)


def test_talk_to_an_address_that_is_none(question: Path) -> None:
    assert "ftp://x" in refusal("talk", "--wav", str(question), "--url", "ftp://x")


def test_talk_to_an_unknown_model(served: TwoGateways, question: Path) -> None:
    line = refusal("talk", "--wav", str(question), "--url", served.urls[0], "--model", "no-such-model")
    assert "model_not_found" in line and "no-such-model" in line


def no_file(path: Path) -> None:
    pass


def text_file(path: Path) -> None:
    path.write_text("this is no sound")


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def broken_header(path: Path) -> None:
    write_wav(path, bytes(100))
    path.write_bytes(path.read_bytes()[:30])


def eight_bits(path: Path) -> None:
    write_wav(path, bytes(100), width=1)


@pytest.mark.parametrize("make", [no_file, text_file, empty_file, broken_header, eight_bits])
def test_talk_with_a_wav_that_is_none(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "question.wav"
    make(path)
    line = refusal("talk", "--wav", str(path), "--url", NOBODY)
    assert str(path) in line and not line.endswith(": "), line
