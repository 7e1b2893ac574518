"""Starts a system of its own and runs the black-box suite against it.

The suite is `conformance` in DUOLOGUE_SHARED (default ../shared). By default the groups that this version
serves are run; `--all` runs every group. Exit code: pytest's.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

GROUPS = ("handshake", "append_commit", "responses", "text", "lifecycle")
START_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(port: int, system: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and system.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every group")
    parser.add_argument("--groups", nargs="*", default=GROUPS)
    options, rest = parser.parse_known_args()
    suite = Path(os.environ.get("DUOLOGUE_SHARED", "../shared")) / "conformance"
    if not suite.is_dir():
        print(f"skipped: no conformance suite at {suite}; set DUOLOGUE_SHARED to the folder that holds it")
        return 0
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="duologue-") as home:
        log = Path(home) / "up.log"
        command = [sys.executable, "-m", "duologue.cli.main", "up", "--home", home, "--port", str(port)]
        command += ["--pipelines", "loopback,loopback-1s,loopback-talk"]
        with log.open("wb") as output:
            system = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            if not wait_ready(port, system):
                print(log.read_text(), "the system did not become ready", sep="\n")
                return 1
            return run_suite(suite, port, () if options.all else options.groups, rest)
        finally:
            system.terminate()
            system.wait(30)


def run_suite(suite: Path, port: int, groups: tuple[str, ...], rest: list[str]) -> int:
    files = [str(suite / f"test_{group}.py") for group in groups] or [str(suite)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(suite / "pytest.ini")]
    command += [*files, "--duologue-url", f"ws://127.0.0.1:{port}", *rest]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
