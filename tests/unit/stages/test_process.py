"""A worker process from its pipelines to its end, on the in-memory bus and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duologue.bus.link import Endpoint, LinkHandler, Peer
from duologue.bus.memory import MemoryHub
from duologue.model.catalog import find_pipeline, installed
from duologue.model.pipeline import PipelineError
from duologue.model.records import WorkerRecord
from duologue.stages.__main__ import main
from duologue.stages.process import HUNG_EXIT, REPLACED_EXIT, WorkerOptions, WorkerProcess
from duologue.store.memory import MemoryStore
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit

LOOPBACK = ("loopback", "loopback-1s", "loopback-talk")


class Place:
    """A machine with nothing on it but a store and a bus."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.hub = MemoryHub()
        self.left: list[int] = []
        self.made: list[WorkerProcess] = []

    def worker(self, id: str = "w", group: str = "loopback-a") -> WorkerProcess:
        def endpoint(me: Peer, handler: LinkHandler) -> Endpoint:
            return self.hub.endpoint(me, handler, f"memory://{id}{len(self.made)}")

        worker = WorkerProcess(
            WorkerOptions(id=id, group=group),
            [find_pipeline(name) for name in LOOPBACK],
            registry=self.store.registry,
            make_endpoint=endpoint,
            leave=self.left.append,
        )
        self.made.append(worker)
        return worker

    async def registered(self) -> tuple[Registration, ...]:
        return (await self.store.registry.members("worker")).members


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    yield place
    for worker in place.made:
        worker.worker.stop()
        await worker.endpoint.close()


async def test_a_started_worker_is_registered_with_all_its_stages(place: Place) -> None:
    worker = place.worker()
    await worker.start()
    (member,) = await place.registered()
    assert (member.id, member.endpoint, member.capacity, member.load) == ("w", "memory://w0", 776, 0)
    assert member.pipelines == LOOPBACK
    record = msgspec.msgpack.decode(member.extra, type=WorkerRecord)
    assert record.group == "loopback-a" and record.accepting
    assert [(stage.pipeline, stage.stage) for stage in record.stages] == [
        (name, stage) for name in LOOPBACK for stage in (0, 1)
    ]
    await worker.stop(0)
    assert await place.registered() == () and place.left == []


async def test_it_runs_until_it_is_asked_to_stop(place: Place) -> None:
    worker, stop = place.worker(), asyncio.Event()
    await worker.start()
    stop.set()
    assert await asyncio.wait_for(worker.run(stop), 5) == 0


async def test_a_hung_worker_signs_off_and_leaves_at_once(place: Place) -> None:
    worker = place.worker()
    await worker.start()
    worker.worker.unhealthy.set_result("a step does not end")
    code = await asyncio.wait_for(worker.run(asyncio.Event()), 5)
    await worker.stop(code)
    assert (code, place.left) == (HUNG_EXIT, [HUNG_EXIT])
    assert await place.registered() == ()


async def test_a_worker_whose_id_was_taken_over_ends(place: Place) -> None:
    worker = place.worker()
    await worker.start()
    other = Registration(kind="worker", id="w", incarnation="another")
    await place.store.registry.beat(other, join=True)
    code = await asyncio.wait_for(worker.run(asyncio.Event()), 5)
    await worker.stop(code)
    assert code == REPLACED_EXIT
    assert [member.incarnation for member in await place.registered()] == ["another"]


async def test_a_group_that_no_pipeline_names_cannot_start(place: Place) -> None:
    with pytest.raises(PipelineError, match="loopback-a, loopback-b"):
        await place.worker(group="nobody").start()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--worker", "nobody", "--pipelines", "loopback"], "there are: loopback-a, loopback-b"),
        (["--worker", "loopback-a", "--pipelines", "no-such"], "no pipeline 'no-such'"),
        (["--worker", "loopback-a", "--config", "nowhere.toml"], "nowhere.toml"),
    ],
    ids=["group", "pipeline", "file"],
)
def test_what_a_user_can_mend_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_pipelines_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    assert set(LOOPBACK) <= set(installed())
    path = tmp_path / "mine.toml"
    path.write_text(installed()["loopback"].read_text().replace('"loopback"', '"mine"', 1))
    assert find_pipeline(str(path)).name == "mine"
    path.write_text("name = 5")
    with pytest.raises(PipelineError, match="mine.toml"):
        find_pipeline(str(path))
    with pytest.raises(PipelineError, match="loopback-talk"):
        find_pipeline("lopback")


def test_the_loopback_models_have_room_for_128_sessions() -> None:
    for name in LOOPBACK:
        pipeline: Any = find_pipeline(name)
        assert pipeline.workers == ("loopback-a", "loopback-b")
        assert pipeline.max_sessions >= 128 and min(stage.slots for stage in pipeline.stages) >= 128
