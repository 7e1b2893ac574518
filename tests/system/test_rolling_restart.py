"""Every process is restarted, one after the other, and nobody who speaks hears of it; old code works beside new."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.rolling import members, roll, speaking, system_of_twos
from system.running import RunningSystem, duologue, eventually

from duologue.runtime.processes import die_with_parent

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]

SESSIONS = 4
OLD = "486a374829899bd3c86cc6cd4bea080f711385ea"
"""The build before adoption, of the same bus version."""
ROOT = Path(__file__).parents[2]
PORTIONS = ("cli", "client", "inline", "models", "services/gateway", "services/session", "services/stages", "shared")


@pytest.fixture
def system(tmp_path: Path) -> Iterator[RunningSystem]:
    with system_of_twos(tmp_path) as running:
        yield running


async def test_every_process_is_restarted_under_sessions_that_speak(system: RunningSystem) -> None:
    async with speaking(system.url, SESSIONS) as speakers:
        await roll(system, speakers)
        for speaker in speakers:
            assert (speaker.reasons, speaker.errors, speaker.holes) == ([], [], 0)
            assert speaker.resumes >= 1 and not speaker.breaks
    log = system.log.read_text()
    assert "did not stop within" not in log


@pytest.fixture
def old_code(tmp_path: Path) -> Path:
    """The older build's files, from the history of this repository."""
    folder = tmp_path / "old"
    folder.mkdir()
    archive = subprocess.run(["git", "archive", OLD, *PORTIONS], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the history does not reach back to {OLD[:7]}: {archive.stderr.decode().strip()[:200]}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def old_worker(system: RunningSystem, code: Path) -> subprocess.Popen[bytes]:
    """A stage worker of the older build in this system, told only what it knows."""
    settings = tomllib.loads((system.home / "run" / "duologue.toml").read_text())
    config = code / "old.toml"
    config.write_text(
        f'[store]\nurl = "{settings["store"]["url"]}"\n[bus]\nsocket_dir = "{settings["bus"]["socket_dir"]}"\n'
    )
    path = os.pathsep.join(str(code / portion) for portion in PORTIONS)
    arguments = ("--config", str(config), "--id", "worker-old", "--worker", "loopback-a", "--pipelines", "loopback")
    parent = os.getpid()
    with (code / "old.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "duologue.stages", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )


def is_of(code: Path, pid: int) -> bool:
    """Whether this process has the older build's files loaded: its environment names them first."""
    return str(code).encode() in Path(f"/proc/{pid}/environ").read_bytes()


async def test_a_worker_of_an_older_build_serves_shards_of_today(system: RunningSystem, old_code: Path) -> None:
    async with speaking(system.url, SESSIONS) as speakers:
        worker = await asyncio.to_thread(old_worker, system, old_code)
        try:
            await eventually(lambda: "worker-old" in members(system), "the old worker is registered")
            assert is_of(old_code, worker.pid)
            for name in ("worker-loopback-a-1", "worker-loopback-a-2"):
                await drained(system, name)
            await eventually(lambda: members(system)["worker-old"]["load"] == SESSIONS, "the old worker has them all")
            heard = [speaker.completed for speaker in speakers]
            await eventually(
                lambda: all(s.completed >= n + 2 for s, n in zip(speakers, heard, strict=True)), "it serves them"
            )
            for speaker in speakers:
                assert (speaker.reasons, speaker.errors, speaker.holes) == ([], [], 0)
        finally:
            worker.terminate()
            await asyncio.to_thread(worker.wait, 30)


async def drained(system: RunningSystem, name: str) -> None:
    done = await asyncio.to_thread(duologue, "drain", name, "--home", str(system.home))
    assert done.returncode == 0, done.stdout + done.stderr
