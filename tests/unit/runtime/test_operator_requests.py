"""What an operator asks of a process by HTTP reaches whoever answers it, with its token."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest

from duologue.runtime.exposition import Asked, ExpositionServer
from duologue.runtime.health import Readiness

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("head", "asked"),
    [
        (b"GET /sessions HTTP/1.1\r\n\r\n", Asked("GET", "/sessions", {}, "")),
        (
            b"POST /sessions/s1/kill?reason=abuse HTTP/1.1\r\nHost: x\r\nauthorization:  Bearer abc \r\n\r\n",
            Asked("POST", "/sessions/s1/kill", {"reason": "abuse"}, "abc"),
        ),
        (b"GET /sessions HTTP/1.1\r\nAuthorization: Basic abc\r\n\r\n", Asked("GET", "/sessions", {}, "")),
        (b"GET /sessions HTTP/1.1\r\nX-Authorization: Bearer abc\r\n\r\n", Asked("GET", "/sessions", {}, "")),
    ],
)
async def test_a_request_is_read_with_its_query_and_its_token(head: bytes, asked: Asked) -> None:
    heard: list[Asked] = []

    def operator(one: Asked) -> tuple[HTTPStatus, bytes]:
        heard.append(one)
        return HTTPStatus.OK, b"{}"

    server = ExpositionServer(Readiness(), lambda: b"", operator=operator)
    host, port = await server.start()
    try:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(head)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()
    finally:
        await server.close()
    assert heard == [asked]


def test_what_the_operator_does_not_answer_is_as_ever() -> None:
    server = ExpositionServer(Readiness(), lambda: b"metric 1", operator=lambda asked: None)
    assert server.answer("GET", "/metrics")[2] == b"metric 1"
    assert server.answer("GET", "/sessions")[0] is HTTPStatus.NOT_FOUND
    assert ExpositionServer(Readiness(), lambda: b"").answer("GET", "/sessions")[0] is HTTPStatus.NOT_FOUND
