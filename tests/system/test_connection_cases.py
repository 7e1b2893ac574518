"""Cases of connections that die without a word: proxies that hang up on silence, processes that stand still."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from system.running import RunningSystem, duologue, eventually
from system.talkers import SCRIPT
from system.wire import Wire, append, level, pick, seqs, session_object

from duologue.runtime.settings import GatewaySettings

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
PING_S, HANG_UP_S, SILENCE_S = 1.5, 6.0, 15.0


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    settings = tmp_path_factory.mktemp("settings") / "duologue.toml"
    settings.write_text(f"[gateway]\nping_interval_s = {PING_S}\n")
    options = ("--pipelines", "loopback", "--shards", "2", "--config", str(settings))
    with RunningSystem(tmp_path_factory.mktemp("quiet"), *options) as running:
        yield running


@contextlib.asynccontextmanager
async def hasty_proxy(port: int) -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy that cuts both sides when nothing has passed for `HANG_UP_S`, as nginx, envoy and HAProxy do. Its
    address, and what it has cut."""
    cut: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        passed = asyncio.Event()

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    passed.set()
                    sink.write(data)
                    await sink.drain()

        pumps = [asyncio.create_task(pump(reader, forth)), asyncio.create_task(pump(back, writer))]
        try:
            while not any(one.done() for one in pumps):
                passed.clear()
                async with asyncio.timeout(HANG_UP_S):
                    await asyncio.wait(
                        [*pumps, seen := asyncio.create_task(passed.wait())], return_when="FIRST_COMPLETED"
                    )
                    seen.cancel()
        except TimeoutError:
            cut.append("silence")
        finally:
            for one in pumps:
                one.cancel()
            for side in (writer, forth):
                side.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", cut
    finally:
        server.close()


async def test_ops_04_silence_both_ways_does_not_let_a_proxy_hang_up(system: RunningSystem) -> None:
    async with hasty_proxy(system.port) as (url, cut):
        wire = await Wire.open(url, session_object(script=SCRIPT))
        await wire.until("session.updated")
        asked = len(wire.log)
        await asyncio.sleep(SILENCE_S)  # two and a half times what the proxy bears
        await wire.send({"type": "session.heartbeat"})
        await wire.until("session.heartbeat_ack")
        assert cut == []
        assert len(wire.log) == asked + 1, "nothing was said meanwhile"
        await wire.end()


def test_ops_04_what_is_shipped_pings_more_often_than_proxies_hang_up() -> None:
    assert GatewaySettings().ping_interval_s <= 20
    balancer = (ROOT / "deploy" / "haproxy.cfg").read_text()
    seconds = {words[1]: words[2] for line in balancer.splitlines() if (words := line.split())[:1] == ["timeout"]}
    assert seconds["tunnel"] == "1h"
    assert int(seconds["client"].removesuffix("s")) > 20 and int(seconds["server"].removesuffix("s")) > 20


async def _holder(system: RunningSystem, session_id: str) -> str:
    """The shard that has it."""
    async with asyncio.timeout(30):
        while True:
            done = await asyncio.to_thread(duologue, "sessions", "--json", "--home", str(system.home))
            sessions: list[dict[str, Any]] = json.loads(done.stdout)["sessions"]
            for session in sessions:
                if session["session_id"] == session_id:
                    return str(session["shard"])
            await asyncio.sleep(0.2)


async def test_ops_09_a_command_to_a_process_that_stands_still_is_carried_out_once(system: RunningSystem) -> None:
    wire = await Wire.open(system.url, session_object(auto=False))
    session_id = str(wire.log[0]["session"]["id"])
    shard = await _holder(system, session_id)
    pid = system.pid_of(shard)
    os.kill(pid, signal.SIGSTOP)  # no FIN, no word: what is sent goes into a buffer
    try:
        item = {
            "id": "item_kept",
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}],
        }
        await wire.send({"type": "conversation.item.create", "item": item})
        added = await wire.until("conversation.item.added")
        assert added["item"]["id"] == "item_kept"
    finally:
        os.kill(pid, signal.SIGCONT)
    await wire.send(append(level(6000)))
    await wire.send({"type": "session.heartbeat"})
    await wire.until("session.heartbeat_ack")
    await eventually(lambda: shard in {process.name for process in system.state.processes}, "it is there again")
    await wire.end()
    assert [event["item"]["id"] for event in pick(wire.log, "conversation.item.added")].count("item_kept") == 1
    assert seqs(wire.log) == list(range(1, seqs(wire.log)[-1] + 1))
    assert pick(wire.log, "error") == []
