"""What the command line of `duologue up` makes of its settings."""

from __future__ import annotations

import argparse

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
    ("arguments", "key"),
    [
        (("--port", "70000"), "gateway.port"),
        (("--gateways", "0"), "supervisor.gateways"),
        (("--shards", "-1"), "supervisor.shards"),
        (("--gateway-workers", "0"), "supervisor.gateway_workers"),
        (("--tls-cert", "a.pem"), "tls_key"),
    ],
)
def test_a_value_out_of_range_names_its_key(arguments: tuple[str, ...], key: str) -> None:
    with pytest.raises(UserError, match=key):
        up.effective_settings(parsed(*arguments))
