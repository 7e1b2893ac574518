"""What makes a start impossible is one line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue.cli.temporary import free_port
from duologue.gateway.__main__ import CANNOT_START, main
from duologue.gateway.listening import bind
from duologue.gateway.process import CannotStart, check_exposure
from duologue.runtime.settings import GatewaySettings

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """The process configures the root logger; the other tests keep theirs."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_only_this_machine_needs_no_key(host: str) -> None:
    check_exposure(GatewaySettings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_others_do(host: str) -> None:
    with pytest.raises(CannotStart, match="--insecure"):
        check_exposure(GatewaySettings(host=host))
    check_exposure(GatewaySettings(host=host, insecure=True))
    check_exposure(GatewaySettings(host=host, api_keys=("k",)))


def test_a_port_in_use_is_named() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match=f"127.0.0.1:{port}.*use"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("toml", "arguments", "says"),
    [
        ("[gateway]\nnonsense = 1\n", [], "nonsense"),
        ("[gateway]\nhost = '0.0.0.0'\n", [], "without keys"),
        ("", ["--port", "99999"], "--port 99999"),
        ("[store]\nurl = 'nonsense'\n", [], "url"),
        ("[store]\nurl = 'redis://127.0.0.1:{closed}'\n", [], "does not answer"),
    ],
    ids=["unknown key", "exposed", "no port", "no address", "no store"],
)
def test_what_a_user_can_mend_is_one_line(
    toml: str, arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(toml.format(closed=free_port(0)))
    assert main(["--config", str(config), "--port", "0", *arguments]) == CANNOT_START
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert says in lines[0]
