"""Systems of real processes for tests, and the `duologue` command as a shell runs it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from duologue.cli.home import Home, SystemState
from duologue.cli.temporary import free_port
from duologue.runtime.processes import die_with_parent

PATIENCE_S = 60.0
CLI = (sys.executable, "-m", "duologue.cli.main")


def duologue(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end. Outside the repository: the current folder must not matter."""
    return subprocess.run(
        [*CLI, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def refusal(*arguments: str) -> str:
    """What the command says when it refuses: one line on stderr, exit code 2, no traceback."""
    done = duologue(*arguments)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return lines[0]


class RunningSystem:
    """`duologue up` in a home of its own, that a test may do anything to."""

    def __init__(self, home: Path, *options: str, port: int = 0) -> None:
        self.home = home
        self.secure = "--tls" in options
        self.port = port or free_port()
        home.mkdir(exist_ok=True)
        self.log = home / "up.log"
        command = [*CLI, "up", "--home", str(home), "--port", str(self.port), *options]
        parent = os.getpid()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
            )

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def state(self) -> SystemState:
        state = Home(self.home).read_state()
        assert state is not None, self.log.read_text()[-2000:]
        return state

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        return "ready after" in self.log.read_text() if self.secure else is_ready(self.port)

    def wait_ready(self) -> None:
        until(self.ready, "the system is ready", self.log)

    def metrics(self) -> str:
        """What the first gateway tells of itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            return str(answer.read(), "utf-8")

    def pid_of(self, name: str) -> int:
        return next((process.pid for process in self.state.processes if process.name == name), 0)

    def family(self) -> list[psutil.Process]:
        """The supervisor and every process below it."""
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def until(holds: Callable[[], bool], what: str, log: Path | None = None, within_s: float = PATIENCE_S) -> None:
    """Wait for something outside this process: there is nothing to be told by, so it is asked again and again."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            tail = "" if log is None else log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"after {within_s:g} s still not: {what}\n{tail}")
        time.sleep(0.05)


async def eventually(holds: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """The same beside running sessions."""
    await asyncio.to_thread(until, holds, what, None, within_s)


def status(*options: str) -> dict[str, Any]:
    """`duologue status --json`."""
    done = duologue("status", "--json", *options)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
