"""Cases of security at the door: keys, origins, strangers, and frames of any size."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from unit.gateway.running import WAIT_S, System
from websockets.exceptions import InvalidStatus
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from duologue.gateway.front_door import PER_WAITING_SOCKET
from duologue.protocol.duplex import AudioDelta, Dialect, SessionConfig, SessionView, project

pytestmark = pytest.mark.unit

KEY, OTHER = "sk-one", "sk-other"
PATHS = ("/v1/realtime", "/v1/realtime/", "/v1/realtime?duplex=1", "/v1/duplex", "/v1/duplex/")


@pytest.fixture
async def guarded() -> AsyncIterator[System]:
    async with System() as system:
        await system.gateway(api_keys=(KEY, OTHER))
        yield system


async def status(system: System, path: str, **options: Any) -> int:
    """What the upgrade is answered: 101, or the refusal. Nothing else may ever come."""
    try:
        await system.connect(path, **options)
    except InvalidStatus as error:
        assert error.response.body, "a refusal says why"
        return error.response.status_code
    return 101


def header(key: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {key}"}}


def subprotocol(key: str) -> dict[str, Any]:
    return {"subprotocols": ["realtime", f"openai-insecure-api-key.{key}"]}


@pytest.mark.parametrize("path", PATHS)
async def test_sec_01_every_way_in_asks_for_a_key_before_it_accepts(guarded: System, path: str) -> None:
    assert await status(guarded, path) == 401
    for carried in (header, subprotocol):
        assert await status(guarded, path, **carried("sk-wrong")) == 401
        assert await status(guarded, path, **carried(KEY[:-1])) == 401
        assert await status(guarded, path, **carried("")) == 401
        assert await status(guarded, path, **carried(KEY)) == 101
    glue = "&" if "?" in path else "?"
    for name in ("api_key", "key", "token", "authorization"):  # a query is written into logs
        assert await status(guarded, f"{path}{glue}{name}={KEY}") == 401
    resume = f"{path}{glue}resume_session=s&resume_token=t&last_seq=0"
    assert await status(guarded, resume) == 401
    assert guarded.services[0].gateway.waiting() == 2, "only those with a key got in"


async def test_sec_01_a_resume_is_for_the_key_that_opened(guarded: System) -> None:
    client, created = await guarded.open(**header(KEY))
    thief = await guarded.resume(created, after=1, **header(OTHER))
    assert (await thief.next())["error"]["code"] == "invalid_resume_token"
    assert (await thief.closing())[0] == 1008
    await client.send("session.heartbeat")
    await client.until("session.heartbeat_ack")
    again = await guarded.resume(created, after=1, **header(KEY))
    assert (await again.next())["type"] == "session.resumed"


@pytest.mark.parametrize("path", PATHS)
async def test_sec_02_a_page_of_somebody_else_is_refused_also_on_this_machine(path: str) -> None:
    async with System() as system:
        await system.gateway()
        host = system.urls[0]
        assert await status(system, path, origin="https://evil.example") == 403
        assert await status(system, path, origin="null") == 403
        assert await status(system, path, origin="http://127.0.0.1.evil.example") == 403
        assert await status(system, path, origin="http://localhost:1") == 403
        cookie = {"additional_headers": {"Cookie": "session=x"}}
        assert await status(system, path, origin="https://evil.example", **cookie) == 403
        assert await status(system, path) == 101, "programs have no Origin"
        assert await status(system, path, origin=f"http://{host}") == 101


async def test_sec_02_half_open_handshakes_are_bounded_and_not_held() -> None:
    async with System() as system:
        gateway = await system.gateway(max_waiting_sockets=16, first_message_timeout_s=0.2)
        limit = 16 * PER_WAITING_SOCKET
        host, _, port = system.urls[0].rpartition(":")
        half = b"GET /v1/realtime?duplex=1 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upg"
        dialled = [await asyncio.open_connection(host, int(port)) for _ in range(10 * limit)]
        for _, writer in dialled:
            with contextlib.suppress(OSError):
                writer.write(half)
        assert gateway.door.inside <= limit
        async with asyncio.timeout(WAIT_S):  # every one comes to its end, by us
            await asyncio.gather(*(_ended(reader) for reader, _ in dialled))
        for _, writer in dialled:
            writer.close()
        assert gateway.door.inside == 0
        await system.open()


async def _ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        await reader.read()


async def test_sec_02_a_socket_that_says_nothing_is_sent_away() -> None:
    async with System() as system:
        gateway = await system.gateway(max_waiting_sockets=4, first_message_timeout_s=0.2)
        silent = [await system.connect() for _ in range(4)]
        assert await status(system, "/v1/realtime?duplex=1") == 503
        for client in silent:
            assert (await client.closing())[0] == 1008
        assert gateway.gateway.waiting() == 0
        await system.open()


async def test_sec_05_a_frame_beyond_the_cap_ends_the_socket_and_not_the_session() -> None:
    async with System() as system:
        await system.gateway(max_frame_bytes=100_000)
        client, created = await system.open()
        await client.send("session.heartbeat", pad="x" * 90_000)
        await client.until("session.heartbeat_ack")
        await client.ws.send("x" * 100_001)
        assert (await client.closing())[0] == 1009
        assert client.log[-1]["error"]["code"] == "event_too_large"
        again = await system.resume(created, after=1)
        assert (await again.next())["type"] == "session.resumed"


async def test_sec_05_nothing_is_unpacked_so_nothing_can_explode() -> None:
    async with System() as system:
        await system.gateway()
        client, created = await system.open(extensions=[ClientPerMessageDeflateFactory()])
        assert client.ws.protocol.extensions == [], "compression is not negotiated"
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        bomb = packer.compress(bytes(10_000_000)) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert len(bomb) < 15_000
        mask = b"\x00\x00\x00\x00"
        client.ws.transport.write(b"\xc1\xfe" + len(bomb).to_bytes(2, "big") + mask + bomb)  # FIN, RSV1, text
        code, _ = await client.closing()
        assert code in (1002, 1006)
        again = await system.resume(created, after=1)
        assert (await again.next())["type"] == "session.resumed"


@pytest.mark.parametrize("dialect", [Dialect.openai, Dialect.openai_beta])
def test_sec_05_no_frame_to_a_stock_client_reaches_one_mebibyte(dialect: Dialect) -> None:
    view = SessionView("s", SessionConfig(model="m"))
    minute = bytes(24_000 * 2 * 60)
    delta = AudioDelta(event_id="e", response_id="r", item_id="i", delta=minute, format="pcm16", sample_rate_hz=24_000)
    frames = project(delta, dialect, view)
    assert len(frames) > 1
    assert max(map(len, frames)) < 1024 * 1024 - 1024
