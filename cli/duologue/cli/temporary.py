"""A system for the length of one command: its own home, its own port, gone afterwards."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from duologue.cli.errors import UserError
from duologue.cli.home import Home, SystemState
from duologue.runtime.processes import die_with_parent

START_S = 120.0
LOWEST_PORT, FIRST_OUTGOING_PORT = 10_000, 32_768


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
    """A free port of this machine with as many free ones behind it: each further gateway takes the next.

    Not one that the system gives to outgoing connections, as binding port 0 would: such a connection may hold it by
    the time it is bound, and a probe of it before then may be given that very port, meet itself and read its own
    request as the answer.
    """
    while True:
        port = random.randrange(LOWEST_PORT, FIRST_OUTGOING_PORT - following)
        with contextlib.ExitStack() as stack:
            try:
                for n in range(following + 1):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + n))
            except OSError:
                continue
            return port


def _wait_ready(port: int, system: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and system.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)  # polling another process; there is nothing to wait on
    last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise UserError(f"the system did not become ready:\n{last}")
