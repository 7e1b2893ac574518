"""One system for all tests that leave it as they found it: the loopback models behind two gateways."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from system.running import RunningSystem, is_ready, until
from system.wire import none_left_open


class TwoGateways:
    """A running system and the addresses of its gateways."""

    def __init__(self, system: RunningSystem) -> None:
        self.system = system
        self.urls = (system.url, f"ws://127.0.0.1:{system.port + 1}")
        until(lambda: is_ready(system.port + 1), "the second gateway is ready", system.log)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoGateways]:
    home: Path = tmp_path_factory.mktemp("served")
    options = ("--pipelines", "loopback,loopback-1s,loopback-talk", "--gateways", "2", "--standby", "0")
    with RunningSystem(home, *options) as system:
        yield TwoGateways(system)


@pytest.fixture(autouse=True)
async def _no_socket_is_left_open() -> AsyncIterator[None]:
    async with none_left_open():
        yield
