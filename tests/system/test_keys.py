"""Processes that know each other by keys, over tcp: made by `duologue keys`, refused without."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from system.running import RunningSystem, duologue, eventually, until
from system.test_supervisor import serves

from duologue.bus.curve import CurveKeys, make_pair, read_secret
from duologue.bus.link import LinkHandler, Peer
from duologue.bus.zmq import ZmqEndpoint
from duologue.cli.store_address import store_at

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


class Nobody(LinkHandler):
    """Counts the links that it got."""

    ready = 0

    def on_ready(self, link: object) -> None:
        self.ready += 1

    def on_message(self, link: object, message: object, frames: object) -> None: ...
    def on_credit(self, link: object) -> None: ...
    def on_lost(self, link: object, lost: object) -> None: ...


def config(folder: Path, **bus: str) -> str:
    path = folder / "duologue.toml"
    lines = [f'{key} = "{value}"' for key, value in bus.items()]
    path.write_text("[bus]\n" + "\n".join(lines) + "\n")
    return str(path)


async def test_a_system_over_tcp_with_keys_serves_and_turns_strangers_away(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    made = duologue("keys", str(keys))
    assert made.returncode == 0, made.stderr
    secret = read_secret(keys / "fleet.secret")
    assert secret not in made.stdout + made.stderr
    file = config(tmp_path, host="127.0.0.1", curve_secret_file=str(keys / "fleet.secret"))
    with RunningSystem(tmp_path / "home", "--config", file, "--pipelines", "loopback") as system:
        await serves(system.url)
        store = store_at(system.state.redis_url)
        shard = (await store.registry.members("shard")).members[0]
        await store.close()
        assert shard.endpoint.startswith("tcp://127.0.0.1:")
        assert shard.endpoint.endswith(f"#{CurveKeys(secret).public}")
        handler = Nobody()
        stranger = ZmqEndpoint(
            Peer("stranger", "gateway", "x"),
            handler,
            curve=CurveKeys(make_pair()[1], (CurveKeys(secret).public,)),
        )
        await stranger.start()
        stranger.dial(shard.id, shard.endpoint)
        await eventually(
            lambda: "its key is not allowed here" in system.log.read_text(errors="replace"), "the log tells of it"
        )
        assert handler.ready == 0
        await stranger.close()
        await serves(system.url)


async def test_where_others_reach_it_a_system_without_keys_does_not_start(tmp_path: Path) -> None:
    system = RunningSystem(tmp_path / "home", "--config", config(tmp_path, host="0.0.0.0"), "--pipelines", "loopback")
    try:
        await asyncio.to_thread(until, lambda: system.process.poll() is not None, "it has ended", system.log)
        assert system.process.returncode == 2
        assert "bus_keys_missing" in system.log.read_text()
    finally:
        system.__exit__()
