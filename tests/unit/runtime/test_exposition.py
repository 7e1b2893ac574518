"""The small HTTP server of shards and workers: three pages, everything bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from duologue.runtime import exposition
from duologue.runtime.exposition import MAX_HEAD_BYTES, NEEDS_TOKEN, ExpositionServer
from duologue.runtime.health import Readiness

pytestmark = pytest.mark.unit


TOKEN = "of-this-registration"


class Served:
    def __init__(self) -> None:
        self.readiness = Readiness("store")
        self.drains: list[float] = []
        self.server = ExpositionServer(self.readiness, lambda: b"metric 1\n", self.drains.append, token=TOKEN)
        self.address: tuple[str, int] = ("", 0)

    async def ask(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Status, head and body; (0, b"", b"") if the server closed without a word."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(request)
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head else 0), head, body

    async def drain(self, query: str = "", bearer: str = TOKEN) -> tuple[int, bytes, bytes]:
        head = f"POST /drain{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n\r\n"
        return await self.ask(head.encode("latin-1"))

    async def get(self, path: str) -> tuple[int, bytes, bytes]:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    made.address = await made.server.start()
    yield made
    await made.server.close()


async def test_metrics(served: Served) -> None:
    status, head, body = await served.get("/metrics?name=x")
    assert (status, body) == (200, b"metric 1\n")
    assert b"text/plain" in head and b"Content-Length: 9" in head


async def test_a_drain_is_asked_for_by_post(served: Served) -> None:
    assert (await served.get("/drain"))[0] == 404
    status, _, body = await served.drain("?deadline_s=7")
    assert (status, json.loads(body)) == (202, {"draining": True, "deadline_s": 7.0})
    assert (await served.drain())[0] == 202
    for wrong in ("-1", "soon", "3601", "nan"):
        assert (await served.drain(f"?deadline_s={wrong}"))[0] == 400
    assert served.drains == [7.0, 30.0]
    assert (await served.ask(b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 405


async def test_a_drain_needs_the_token(served: Served) -> None:
    for bearer in ("", "guessed", TOKEN[:-1], TOKEN + "x", "\xff"):
        status, _, body = await served.drain("?deadline_s=7", bearer)
        assert (status, json.loads(body)) == (401, {"error": NEEDS_TOKEN})
    assert (await served.ask(b"POST /drain?deadline_s=7 HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 401
    assert served.drains == []


async def test_who_has_no_token_is_drained_by_nobody() -> None:
    drains: list[float] = []
    server = ExpositionServer(Readiness(), lambda: b"", drains.append)
    assert server.answer("POST", "/drain", "", "")[0] == 401
    assert drains == []


async def test_health_and_readiness(served: Served) -> None:
    assert (await served.get("/health"))[0] == 200
    status, _, body = await served.get("/readyz")
    assert status == 503
    assert json.loads(body) == {"ready": False, "reasons": {"store": "not yet"}}
    served.readiness.meet("store")
    assert (await served.get("/readyz"))[0] == 200


async def test_head_has_no_body(served: Served) -> None:
    status, head, body = await served.ask(b"HEAD /metrics HTTP/1.0\r\n\r\n")
    assert (status, body) == (200, b"")
    assert b"Content-Length: 9" in head


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /secrets HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /metrics SPDY/3\r\n\r\n", 400),
        (b"\xff\xfe\xfd\r\n\r\n", 400),
        (b"x" * (MAX_HEAD_BYTES + 1), 431),
    ],
)
async def test_bad_requests_are_answered(served: Served, request_bytes: bytes, status: int) -> None:
    assert (await served.ask(request_bytes))[0] == status
    assert (await served.get("/health"))[0] == 200


async def test_a_request_in_pieces(served: Served) -> None:
    reader, writer = await asyncio.open_connection(*served.address)
    for piece in (b"GET /hea", b"lth HTTP/1.1\r\n", b"\r\n"):
        writer.write(piece)
        await writer.drain()
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_who_says_nothing_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "REQUEST_TIMEOUT_S", 0.01)
    status, _, _ = await served.ask(b"GET /metrics")
    assert status == 0


async def test_connections_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_CONNECTIONS", 1)
    _, idle = await asyncio.open_connection(*served.address)
    while not served.server.connections:
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    assert (await served.get("/health"))[0] == 503
    idle.close()


async def test_close_is_idempotent_and_cuts_the_idle(served: Served) -> None:
    reader, writer = await asyncio.open_connection(*served.address)
    while not served.server.connections:
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    await served.server.close()
    await served.server.close()
    with pytest.raises(ConnectionResetError):
        raise ConnectionResetError if not await reader.read() else AssertionError
    writer.close()
