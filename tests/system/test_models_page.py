"""`docs/models.md`, followed literally: its commands are run and its files written, in an empty folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue.cli.temporary import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_S = 120.0


class Reader:
    """Somebody at a terminal, in an empty folder. What serves goes on until `leave`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self._served: subprocess.Popen[bytes] | None = None
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # A machine that runs tests may have something on port 8080.
        self._environ = {**os.environ, "PATH": path, "DUOLOGUE_GATEWAY__PORT": str(free_port()), "COLUMNS": "200"}

    def type(self, command: str) -> str:
        if command.startswith("duologue up "):
            self._serve(command)
            return ""
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self._environ, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        self.told.append(done.stdout)
        return done.stdout

    def check(self) -> dict[str, str]:
        """The check that the page runs: what failed, and what was said of it."""
        command = "duologue model check parrot/parrot.toml"
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self._environ, capture_output=True, text=True, timeout=PATIENCE_S
        )
        lines = [re.split(r" {2,}", line.strip()) for line in done.stdout.splitlines()]
        return {parts[1]: parts[-1] for parts in lines if parts[0] == "failed"}

    def write(self, text: str) -> None:
        """The first line names the file."""
        first, _, _ = text.partition("\n")
        (self.folder / first.removeprefix("# ")).write_text(text)

    def _serve(self, command: str) -> None:
        with (self.folder / "up.log").open("w") as log:
            self._served = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"], cwd=self.folder, env=self._environ, stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE_S
        while "ready after" not in (self.folder / "up.log").read_text():
            assert self._served.poll() is None and time.monotonic() < deadline, (self.folder / "up.log").read_text()
            time.sleep(0.1)  # another process's log: there is nothing to wait on

    def leave(self) -> None:
        if self._served is not None:
            self._served.send_signal(signal.SIGINT)
            self._served.wait(30)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    somebody = Reader(tmp_path)
    yield somebody
    somebody.leave()


def blocks() -> list[tuple[str, str]]:
    text = PAGE.read_text()
    return BLOCK.findall(text[text.index("## Your own, in an hour") : text.index("## What is checked")])


def test_the_page_can_be_followed(reader: Reader) -> None:
    kinds = [kind for kind, _ in blocks()]
    assert kinds == ["sh", "sh", "sh", "python", "sh"]
    for kind, text in blocks():
        if kind == "python":
            reader.write(text)
            continue
        for command in text.splitlines():
            reader.type(command)
    checks = [told for told in reader.told if "passed" in told]
    assert len(checks) == 2 and all(" 0 failed" in told for told in checks)
    assert "ms of sound" in checks[1]
    assert (reader.folder / "answer.wav").stat().st_size > 10_000


def test_what_the_page_says_of_broken_models_is_so(reader: Reader) -> None:
    reader.type(blocks()[0][1].splitlines()[0])
    (engine,) = [text for kind, text in blocks() if kind == "python"]
    reset = "        self._state[slot.index] = 0  # somebody else was here before\n"
    each = "self._state[unit.slot.index] = after[unit.slot.index]"
    assert reset in engine and each in engine
    reader.write(engine.replace(reset, ""))
    assert set(reader.check()) == {"batch equals solo", "repeats itself"}
    reader.write(engine.replace(each, "self._state[:] = after"))
    assert list(reader.check()) == ["batch equals solo"]
