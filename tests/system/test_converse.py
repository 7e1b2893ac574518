"""One example, unchanged, with a server and in one process: the same input has the same events."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from system.conftest import TwoGateways

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "converse.py"


def printed(tmp_path: Path, *arguments: str) -> list[str]:
    """Outside the repository: only what is installed counts."""
    command = [sys.executable, str(EXAMPLE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_example_prints_the_same_events_over_the_network_and_in_process(
    served: TwoGateways, tmp_path: Path
) -> None:
    inline = printed(tmp_path, "--inline")
    assert inline[0] == "session.created" and inline[-1] == "session.closed"
    assert inline.count("response.output_audio.delta") == 6 and "response.done" in inline
    assert printed(tmp_path, served.urls[0]) == inline
    assert printed(tmp_path, served.urls[1]) == inline


def test_without_a_server_the_example_says_so_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "ws://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "cannot connect" in done.stderr
