"""Connections that are no WebSocket yet: held for a bounded time, and bounded in number."""

from __future__ import annotations

import asyncio

import pytest
from unit.gateway.running import WAIT_S, System

from duologue.gateway.front_door import PER_WAITING_SOCKET
from duologue.gateway.service import GatewayService

pytestmark = pytest.mark.unit

_HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


async def _dial(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def _refused(gateway: GatewayService) -> float:
    name = 'duologue_gateway_refused_total{reason="connections"} '
    lines = gateway.metrics().decode().splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\nhost:",
        b"POST /drain?deadline_s=-1 HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n",
        _HEALTH + b"\r\n",  # takes uvicorn's own time limit off
    ],
    ids=["silent", "half a head", "half a body", "an empty line after a request"],
)
async def test_who_brings_no_whole_request_is_dropped(sent: bytes) -> None:
    async with System() as system:
        gateway = await system.gateway(first_message_timeout_s=0.2)
        reader, writer = await _dial(system.urls[0])
        writer.write(sent)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(ConnectionResetError):
                while await reader.read(4096):
                    pass
                raise ConnectionResetError  # an end of the stream does as well
        writer.close()
        assert gateway.door.inside == 0


async def test_beyond_the_bound_a_connection_is_refused_and_counted_and_upgrades_leave_the_count() -> None:
    async with System() as system:
        gateway = await system.gateway(max_waiting_sockets=1)
        client, _ = await system.open()
        assert gateway.door.inside == 0
        held = [await _dial(system.urls[0]) for _ in range(PER_WAITING_SOCKET)]
        before = _refused(gateway)
        reader, writer = await _dial(system.urls[0])
        async with asyncio.timeout(WAIT_S):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ") and b'"resource_exhausted"' in answer
        assert _refused(gateway) == before + 1
        held[0][1].write(_HEALTH)
        assert (await held[0][0].readline()).startswith(b"HTTP/1.1 200 ")  # those inside are served
        for _, other in held:
            other.close()
        writer.close()
        await client.send("session.heartbeat")
        await client.until("session.heartbeat_ack")
