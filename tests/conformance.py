"""Starts a system of its own in one of six shapes and runs the black-box suite against it.

The suite is `conformance` in DUOLOGUE_SHARED (default ../shared). `--topology single` is `duologue up`; `balanced`
two gateways behind HAProxy with deploy/haproxy.cfg; `workers` is `duologue gateway --workers 2`, two gateways on one
port; `slow-store` is `duologue up` on a store whose every reply is 100 ms +- 50 ms late, with the groups SLOWED;
`bridge` and `bridge-openai` are a system whose models are those of a second one, behind the bridge, with the groups
BRIDGED. What cannot be there is not run (BEYOND, which is told). Every group is run, or those of
`--groups`; what is not known here is passed to pytest, whose exit code is given.

A case in RACES asserts an order that nothing promises: where nothing else failed it is tried again, and that is told.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from slow_line import slow_line

from duologue.cli.temporary import free_port
from duologue.runtime.processes import die_with_parent
from duologue.store.embedded import EmbeddedStore

START_S = 60.0
ROOT = Path(__file__).parent.parent
CLI = (sys.executable, "-m", "duologue.cli.main")
MODELS = "loopback,loopback-1s,loopback-talk"
BRIDGED = ("responses", "cancel_bargein", "tools")
"""Groups that a system behind a bridge passes; what others ask for is between the client and its own server."""
SLOWED = ("resume_replay", "takeover", "limits_backpressure")
"""Groups that ask most of the store."""
BEYOND = {
    "slow-store": {
        "test_resume_replay.py::test_nothing_is_replayed_to_a_client_that_has_it_all": (
            "a socket on which nothing comes for 0.3 s counts as settled, and a resume waits for three replies of the "
            "store, one after the other; what comes in the end is the same"
        ),
        "test_resume_replay.py::test_events_of_a_detached_session_are_kept": (
            "it leaves at `response.created` and expects every word on the next socket; what comes while it waits "
            "for the store leaves together with it, so the old socket has heard the first words, and they are not lost"
        ),
    },
    "bridge-openai": {
        "test_responses.py::test_each_unit_that_is_listened_to_is_told_once": (
            "the OpenAI dialect has no event for a unit that was listened to: the bridge tells one for each that goes "
            "up while no answer is due, and the first units of an answer are on their way before it"
        ),
        "test_tools.py::test_a_malformed_call_is_passed_on_raw": (
            "the OpenAI dialect has no event for a call that cannot be read"
        ),
        "test_tools.py::test_an_unanswered_call_is_settled_by_the_next_turn": (
            "the OpenAI dialect has one response at a time: the one that was asked for ends, empty, before the call of "
            "its turn is told, and the case takes the first that ends for the call"
        ),
    },
}
TRIES = 25
RACES = {
    "test_instructions_may_change_until_the_model_has_heard_something": (
        "it appends two units and expects the listen of the second before the answer to an update sent after the "
        "listen of the first; neither waits for the other"
    ),
}


class NotReady(Exception):
    """What was started does not serve; with the end of its log."""


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, ports: Sequence[int], environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A process until the end of the block, ready when `/readyz` at all these ports says so. Raises NotReady."""
    parent = os.getpid()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )
    try:
        for port in ports:
            if not wait_ready(port, process):
                raise NotReady(f"{log.read_text(errors='replace')}\n{' '.join(command)} did not become ready")
        yield
    finally:
        process.terminate()
        process.wait(60)


def wait_ready(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
                if answer.status == 200:
                    return True
        time.sleep(0.1)  # polling another process; there is nothing to wait on
    return False


@contextlib.contextmanager
def up(home: Path, port: int, gateways: int = 1, pipelines: str = MODELS, store: str = "") -> Iterator[None]:
    command = [*CLI, "up", "--home", str(home), "--port", str(port), "--pipelines", pipelines]
    command += ["--redis-url", store] if store else []
    ports = range(port, port + gateways)
    with running([*command, "--gateways", str(gateways)], home / "up.log", ports):
        yield


@contextlib.contextmanager
def single(home: Path) -> Iterator[int]:
    """The port of `duologue up`."""
    port = free_port(0)
    with up(home, port):
        yield port


@contextlib.contextmanager
def balanced(home: Path) -> Iterator[int]:
    """The port of HAProxy before two gateways, as it is deployed."""
    haproxy = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if haproxy is None:
        raise NotReady("HAProxy is not installed")
    port = free_port(3)
    where = {
        "DUOLOGUE_BIND": f"127.0.0.1:{port}",
        "DUOLOGUE_BALANCER_METRICS": f"127.0.0.1:{port + 1}",
        "DUOLOGUE_GATEWAY_1": f"127.0.0.1:{port + 2}",
        "DUOLOGUE_GATEWAY_2": f"127.0.0.1:{port + 3}",
        "DUOLOGUE_OPERATORS": "127.0.0.1",
        "DUOLOGUE_MAXCONN": "1000",
    }
    balancer = [haproxy, "-db", "-f", str(ROOT / "deploy/haproxy.cfg")]
    with up(home, port + 2, gateways=2), running(balancer, home / "haproxy.log", (port,), where):
        yield port


@contextlib.contextmanager
def workers(home: Path) -> Iterator[int]:
    """The port that two gateways share. They belong to a system that is up, with its settings."""
    port = free_port(3)
    command = [*CLI, "gateway", "--config", str(home / "run/duologue.toml"), "--id", "edge", "--workers", "2"]
    command += ["--port", str(port + 1), "--metrics-port", str(port + 2)]
    with up(home, port), running(command, home / "gateway.log", (port + 2, port + 3)):
        yield port + 1


@contextlib.contextmanager
def slow_store(home: Path) -> Iterator[int]:
    """The port of a system whose store is far away."""
    port = free_port(0)
    with EmbeddedStore(home / "valkey") as store, slow_line(store.socket_path, 0.1, 0.05) as url:
        with up(home, port, store=url):
            yield port


@contextlib.contextmanager
def bridged(home: Path, dialect: str) -> Iterator[int]:
    """The port of a system that asks a second one, in one dialect, for all that its models say."""
    upstream, front = home / "upstream", home / "front"
    port = free_port(1)
    pipelines = []
    for folder in (upstream, front):
        folder.mkdir()
    for model, unit_ms in (("loopback", 80), ("loopback-1s", 1000), ("loopback-talk", 80)):
        path = front / f"{model}.toml"
        path.write_text(bridge_pipeline(model, port, dialect, unit_ms))
        pipelines.append(str(path))
    with up(upstream, port), up(front, port + 1, pipelines=",".join(pipelines)):
        yield port + 1


def bridge_pipeline(model: str, port: int, dialect: str, unit_ms: int) -> str:
    """A bridge by the name of the model that is behind it."""
    return f"""
name = "{model}"
plugin = "duologue.models.bridge.plugin:Bridge"
[options]
url = "ws://127.0.0.1:{port}/v1/realtime"
model = "{model}"
dialect = "{dialect}"
unit_ms = {unit_ms}
speed = true
native_turns = {"false" if model == "loopback-talk" else "true"}
[[stages]]
name = "upstream"
engine = "duologue.models.bridge.engine:build"
worker = "bridge"
slots = 256
"""


@contextlib.contextmanager
def bridge(home: Path) -> Iterator[int]:
    with bridged(home, "duplex") as port:
        yield port


@contextlib.contextmanager
def bridge_openai(home: Path) -> Iterator[int]:
    with bridged(home, "openai") as port:
        yield port


GROUPS = {"slow-store": SLOWED, "bridge": BRIDGED, "bridge-openai": BRIDGED}
TOPOLOGIES: dict[str, Callable[[Path], contextlib.AbstractContextManager[int]]] = {
    "single": single,
    "balanced": balanced,
    "workers": workers,
    "slow-store": slow_store,
    "bridge": bridge,
    "bridge-openai": bridge_openai,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", choices=TOPOLOGIES, default="single")
    parser.add_argument("--all", action="store_true", help="every group (the default)")
    parser.add_argument("--groups", nargs="*", default=[])
    options, rest = parser.parse_known_args()
    suite = Path(os.environ.get("DUOLOGUE_SHARED", "../shared")) / "conformance"
    if not suite.is_dir():
        print(f"skipped: no conformance suite at {suite}; set DUOLOGUE_SHARED to the folder that holds it")
        return 0
    with tempfile.TemporaryDirectory(prefix="duologue-") as home:
        try:
            with TOPOLOGIES[options.topology](Path(home)) as port:
                groups = options.groups or GROUPS.get(options.topology, ())
                beyond = [f"--deselect={case}" for case in tell_beyond(options.topology)]
                return run_suite(suite, port, groups, [*beyond, *rest], Path(home) / "results.xml")
        except NotReady as error:
            print(error)
            return 1


def tell_beyond(topology: str) -> list[str]:
    """The cases that this shape cannot pass, which are told with the reason."""
    for case, why in BEYOND.get(topology, {}).items():
        print(f"not run: {case}: {why}")
    return list(BEYOND.get(topology, {}))


def run_suite(suite: Path, port: int, groups: Sequence[str], rest: Sequence[str], results: Path) -> int:
    files = [str(suite / f"test_{group}.py") for group in groups] or [str(suite)]
    code = run_pytest(suite, port, [*files, f"--junitxml={results}", *rest])
    for case in sorted(failed := failures(results) if code == 1 else set()):
        if failed - RACES.keys():
            return code
        print(f"\n{case} is known to race ({RACES[case]}); at most {TRIES - 1} more tries")
        if not any(run_pytest(suite, port, [str(suite), "-k", case]) == 0 for _ in range(TRIES - 1)):
            return code
        code = 0
    return code


def run_pytest(suite: Path, port: int, arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(suite / "pytest.ini")]
    command += ["--duologue-url", f"ws://127.0.0.1:{port}", *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, check=False).returncode


def failures(results: Path) -> set[str]:
    """The names of the cases that failed, or whose invariants did."""
    cases = ElementTree.parse(results).iter("testcase")
    return {
        case.get("name", "") for case in cases if case.find("failure") is not None or case.find("error") is not None
    }


if __name__ == "__main__":
    sys.exit(main())
