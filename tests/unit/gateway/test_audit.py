"""One line for each open, resume, take-over and leave: who, from where, what; and never a key."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from unit.gateway.running import WAIT_S, System

from duologue.gateway.audit import model_of
from duologue.runtime.logs import RECORDS, configure_logs

pytestmark = pytest.mark.unit

KEY = "sk-the-key-itself"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    configure_logs("gateway-1", "error", "text", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in RECORDS:
        record = logging.getLogger(name)
        record.handlers[:], record.propagate = [], True


@pytest.fixture
async def system() -> AsyncIterator[System]:
    async with System() as system:
        await system.gateway(api_keys=(KEY,), trusted_proxies=("127.0.0.1",))
        await system.gateway("gateway-2", api_keys=(KEY,))
        yield system


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """By attachment, each in its order: which of two sockets tells first is chance."""
    lines = [json.loads(line) for line in stream.getvalue().splitlines() if '"duologue.audit"' in line]
    return sorted(lines, key=lambda line: line["generation"])


def _headers(forwarded: str = "") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {KEY}"}
    return {"additional_headers": headers | ({"X-Forwarded-For": forwarded} if forwarded else {})}


async def test_each_attachment_has_its_lines_in_json_whatever_the_log_is_like(
    system: System, written: io.StringIO
) -> None:
    client, created = await system.open(**_headers("1.1.1.1, 198.51.100.9"))
    session_id = created["session"]["id"]
    taken = await system.resume(created, after=1, at=1, **_headers("198.51.100.9"))
    resumed = await taken.next()
    assert resumed["type"] == "session.resumed"
    await client.closing()
    await taken.ws.close()
    for service in system.services:
        async with asyncio.timeout(WAIT_S):
            await service.gateway.emptied.wait()
    await system.services[1].chores.settled(WAIT_S)
    back = await system.resume(created | {"resume_token": resumed["resume_token"]}, after=1, **_headers())
    assert (await back.next())["type"] == "session.resumed"
    lines = _lines(written)
    assert [line["event"] for line in lines] == ["open", "leave", "take_over", "leave", "resume"]
    remotes = [line["remote"] for line in lines]
    assert remotes == ["198.51.100.9", "198.51.100.9", "127.0.0.1", "127.0.0.1", "127.0.0.1"]
    assert {line["session_id"] for line in lines} == {session_id}
    assert {line["model"] for line in lines} == {"loopback"}
    assert {line["dialect"] for line in lines} == {"duplex"}
    assert [line["generation"] for line in lines] == [1, 1, 2, 2, 3]
    (key_id,) = {line["key_id"] for line in lines}
    assert key_id.startswith("key:")
    assert (lines[1]["why"], lines[3]["why"], lines[3]["close_code"]) == ("replaced", "socket", 1000)
    assert lines[3]["seconds"] >= 0
    told = [message.remote for message, _ in system.shard.opened_with]
    told += [message.remote for message in system.shard.attached_with]
    assert told == ["198.51.100.9", "127.0.0.1", "127.0.0.1"], "for the line at the end"
    assert KEY not in written.getvalue()
    assert created["resume_token"] not in written.getvalue()


async def test_a_take_over_at_the_same_gateway_is_one(system: System, written: io.StringIO) -> None:
    _, created = await system.open(**_headers())
    again = await system.resume(created, after=1, **_headers())
    await again.next()
    assert [line["event"] for line in _lines(written)] == ["open", "leave", "take_over"]


def test_a_record_of_another_version_names_no_model() -> None:
    assert model_of(b"\xc1") == ""
    assert model_of(b"") == ""
