"""`duologue drain` shows each process what it wants to see, and nobody else what that is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from duologue.cli.drain import post_drain
from duologue.cli.status import operator_token, record_of
from duologue.model.records import GatewayRecord, ShardRecord, WorkerRecord, encode_record
from duologue.runtime.exposition import ExpositionServer
from duologue.runtime.health import Readiness
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit

TOKEN = "of-this-incarnation"


def registered(kind: str, url: str = "", token: str = "") -> Registration:
    records: dict[str, GatewayRecord | ShardRecord | WorkerRecord] = {
        "gateway": GatewayRecord(0, 0, metrics_url=url),
        "shard": ShardRecord((), 0, 1, metrics_url=url, operator_token=token),
        "worker": WorkerRecord("a", (), metrics_url=url, operator_token=token),
    }
    return Registration(kind, "x", "inc", extra=encode_record(records[kind]))


class Process:
    def __init__(self) -> None:
        self.drains: list[float] = []
        self.server = ExpositionServer(Readiness(), lambda: b"", self.drains.append, token=TOKEN)
        self.url = ""


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    made = Process()
    host, port = await made.server.start()
    made.url = f"http://{host}:{port}/metrics"
    yield made
    await made.server.close()


@pytest.mark.parametrize("kind", ["shard", "worker"])
async def test_a_process_is_shown_the_token_that_it_has_registered(process: Process, kind: str) -> None:
    answer = await post_drain(registered(kind, process.url, TOKEN), 7.0, "an-api-key")
    assert (answer.status_code, process.drains) == (202, [7.0])
    for wrong in ("", "another"):
        assert (await post_drain(registered(kind, process.url, wrong), 7.0, TOKEN)).status_code == 401
    assert process.drains == [7.0]


async def test_a_gateway_is_shown_the_key(process: Process) -> None:
    gateway = registered("gateway", process.url)
    assert (await post_drain(gateway, 7.0, TOKEN)).status_code == 202
    assert (await post_drain(gateway, 7.0)).status_code == 401


async def test_who_does_not_answer_is_told_as_such(process: Process) -> None:
    await process.server.close()
    with pytest.raises(httpx.HTTPError):
        await post_drain(registered("worker", process.url, TOKEN), 1.0)


@pytest.mark.parametrize("kind", ["shard", "worker"])
def test_no_token_is_shown(kind: str) -> None:
    told = registered(kind, token=TOKEN)
    assert TOKEN not in str(record_of(told))
    assert operator_token(told) == TOKEN
