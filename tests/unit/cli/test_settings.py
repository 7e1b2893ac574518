"""What the command line of `duologue up` makes of its settings."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from duologue.cli import up
from duologue.cli.errors import UserError

pytestmark = pytest.mark.unit


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_command_line_wins() -> None:
    settings = up.effective_settings(parsed("--port", "9000", "--shards", "3", "--redis-url", "redis://there:6379"))
    assert (settings.gateway.port, settings.supervisor.shards, settings.store.url) == (9000, 3, "redis://there:6379")
    assert settings.gateway.host == "127.0.0.1"


def test_a_model_named_twice_is_served_once() -> None:
    settings = up.effective_settings(parsed("--pipelines", "loopback,loopback-1s,loopback"))
    assert settings.pipelines == ("loopback", "loopback-1s")


@pytest.mark.parametrize(
    ("cpus", "file", "arguments", "shards"),
    [
        (2, "", (), (2, 1)),
        (4, "", (), (2, 0)),
        (2, "[supervisor]\nstop_s = 5\n", (), (2, 1)),
        (2, "", ("--shards", "2"), (2, 0)),
        (2, "[supervisor]\nshards = 2\n", (), (2, 0)),
        (2, "", ("--standby", "0"), (2, 0)),
        (64, "", ("--standby", "1"), (2, 1)),
        (2, "[supervisor]\nshards = 3\nstandby = 2\n", (), (3, 2)),
        (2, "[supervisor]\nshards = 3\nstandby = 2\n", ("--standby", "1"), (3, 1)),
    ],
)
def test_how_many_shards_are_on_standby(
    tmp_path: Path, cpus: int, file: str, arguments: tuple[str, ...], shards: tuple[int, int]
) -> None:
    """What anybody said counts; where nobody did, how many CPUs there are."""
    path = tmp_path / "system.toml"
    path.write_text(file)
    supervisor = up.effective_settings(parsed("--config", str(path), *arguments), cpus).supervisor
    assert (supervisor.shards, supervisor.standby) == shards


def test_shards_in_the_environment_are_said_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE_SUPERVISOR__SHARDS", "2")
    assert up.effective_settings(parsed(), 2).supervisor.standby == 0
    monkeypatch.setenv("DUOLOGUE_SUPERVISOR__STANDBY", "1")
    assert up.effective_settings(parsed(), 64).supervisor.standby == 1


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("--port", "70000"), "gateway.port"),
        (("--gateways", "0"), "supervisor.gateways"),
        (("--shards", "-1"), "supervisor.shards"),
        (("--gateway-workers", "0"), "supervisor.gateway_workers"),
        (("--standby", "-1"), "supervisor.standby"),
        (("--standby", "2"), "`standby` must be less than `shards`"),
        (("--shards", "1", "--standby", "1"), "`standby` must be less than `shards`"),
        (("--tls-cert", "a.pem"), "tls_key"),
    ],
)
def test_a_value_out_of_range_names_its_key(arguments: tuple[str, ...], key: str) -> None:
    with pytest.raises(UserError, match=key):
        up.effective_settings(parsed(*arguments))
