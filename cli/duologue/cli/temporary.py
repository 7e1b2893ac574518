"""A system for the length of one command: its own home, its own port, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from duologue.cli.errors import UserError
from duologue.cli.home import Home, SystemState
from duologue.runtime.processes import die_with_parent

START_S = 120.0


@contextlib.contextmanager
def temporary_system(pipelines: str, *options: str) -> Iterator[SystemState]:
    """`duologue up` with these pipelines, ready. Raises UserError with the end of its log if it is not."""
    path = Path(tempfile.mkdtemp(prefix="duologue-"))
    port = free_port()
    command = [sys.executable, "-m", "duologue.cli.main", "up", "--home", str(path), "--port", str(port)]
    parent = os.getpid()
    with (path / "up.log").open("wb") as log:
        system = subprocess.Popen(
            [*command, "--pipelines", pipelines, *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )
    try:
        _wait_ready(port, system, path / "up.log")
        state = Home(path).read_state()
        assert state is not None, "a ready system has told its state"
        yield state
    finally:
        system.terminate()
        try:
            system.wait(30)
        except subprocess.TimeoutExpired:
            system.kill()
        shutil.rmtree(path, ignore_errors=True)


def free_port(following: int = 3) -> int:
    """A free port of this machine with as many free ones behind it: each further gateway takes the next."""
    while True:
        with contextlib.ExitStack() as stack:
            port = _bound(stack, 0)
            try:
                for n in range(1, following + 1):
                    _bound(stack, port + n)
            except (OSError, OverflowError):
                continue
            return port


def _bound(stack: contextlib.ExitStack, port: int) -> int:
    probe = stack.enter_context(socket.socket())
    probe.bind(("127.0.0.1", port))
    return int(probe.getsockname()[1])


def _wait_ready(port: int, system: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and system.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)  # polling another process; there is nothing to wait on
    last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise UserError(f"the system did not become ready:\n{last}")
