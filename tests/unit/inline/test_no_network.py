"""In this process means in this process: no address is bound or dialled, no other process is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

EXAMPLE = Path(__file__).parents[3] / "examples" / "converse.py"
FORBIDDEN = ("socket.bind", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.fork", "os.posix_spawn")
PROGRAM = f"""
import runpy, sys

def hook(event, arguments):
    if event in {FORBIDDEN!r}:
        sys.stderr.write(f"forbidden: {{event}} {{arguments}}\\n")
        raise RuntimeError(event)

sys.addaudithook(hook)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


def test_a_conversation_in_this_process_needs_no_network_and_no_other_process() -> None:
    done = run("--inline")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "session.closed"


def test_the_watch_sees_a_network() -> None:
    assert "forbidden: socket.connect" in run("ws://127.0.0.1:1").stderr
