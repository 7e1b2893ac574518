"""A worker process from its pipelines to its end, on the in-memory bus and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duologue.bus.link import Endpoint, Link, LinkHandler, Peer, PeerLost
from duologue.bus.memory import MemoryHub
from duologue.bus.messages import AnyMessage, CloseStages, OpenStages, StagesOpened
from duologue.fence import StageFence
from duologue.model.catalog import find_pipeline, installed
from duologue.model.pipeline import PipelineError
from duologue.model.records import WorkerRecord
from duologue.models.loopback.heads import StageConfig
from duologue.models.loopback.script import LISTEN, Audio, Step
from duologue.stages.__main__ import main
from duologue.stages.process import HUNG_EXIT, REPLACED_EXIT, WorkerOptions, WorkerProcess
from duologue.store.memory import MemoryStore
from duologue.store.ports import Registration

pytestmark = pytest.mark.unit

LOOPBACK = ("loopback", "loopback-1s", "loopback-talk")
CONFIG = msgspec.msgpack.encode(StageConfig(Audio("echo"), 0.0, 0.0, 1, None, 0, (Step(LISTEN),)))


class Place:
    """A machine with nothing on it but a store and a bus."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.hub = MemoryHub()
        self.left: list[int] = []
        self.made: list[WorkerProcess] = []

    def worker(self, id: str = "w", group: str = "loopback-a", drain_s: float = 0.0) -> WorkerProcess:
        def endpoint(me: Peer, handler: LinkHandler) -> Endpoint:
            return self.hub.endpoint(me, handler, f"memory://{id}{len(self.made)}")

        worker = WorkerProcess(
            WorkerOptions(id=id, group=group, drain_s=drain_s),
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
    assert record.operator_token == worker.operator_token != ""
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


class Shard(LinkHandler):
    """It opens one session as soon as it reaches a worker."""

    def __init__(self, place: Place) -> None:
        self.opened: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self.endpoint = place.hub.endpoint(Peer("s", "shard", "s1"), self, "memory://s")

    def on_ready(self, link: Link) -> None:
        link.send(OpenStages("one", StageFence(1, 1), "loopback", (0,)), [CONFIG])

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        if isinstance(message, StagesOpened):
            self.opened.set_result(link)

    def on_credit(self, link: Link) -> None: ...

    def on_lost(self, link: Link, lost: PeerLost) -> None: ...


async def asked_with_a_session(place: Place) -> tuple[WorkerProcess, Shard, Link, asyncio.Task[int]]:
    """A worker that was asked to stop while it has a session."""
    worker, stop = place.worker(drain_s=60.0), asyncio.Event()
    await worker.start()
    shard = Shard(place)
    await shard.endpoint.start()
    shard.endpoint.dial("w", worker.endpoint.address)
    link = await asyncio.wait_for(shard.opened, 5)
    ending = asyncio.create_task(worker.run(stop))
    stop.set()
    done, _ = await asyncio.wait([ending], timeout=0.2)
    assert not done and not worker.worker.accepting and worker.worker.draining_s > 0
    return worker, shard, link, ending


async def test_a_worker_that_is_asked_to_stop_ends_when_its_sessions_have_moved(place: Place) -> None:
    _, shard, link, ending = await asked_with_a_session(place)
    link.send(CloseStages("one", StageFence(1, 1)))
    assert await asyncio.wait_for(ending, 5) == 0
    await shard.endpoint.close()


async def test_it_waits_for_no_session_whose_shard_is_gone(place: Place) -> None:
    worker, shard, _, ending = await asked_with_a_session(place)
    await shard.endpoint.close()
    assert await asyncio.wait_for(ending, 5) == 0
    assert len(worker.worker.door) == 1


async def test_it_ends_when_its_time_is_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.stages.process.DRAIN_GRACE_S", 0.0)
    worker, shard, _, ending = await asked_with_a_session(place)
    ending.cancel()
    late = asyncio.Event()
    late.set()
    worker.worker._drained_at = 0.0  # long ago
    assert await asyncio.wait_for(worker.run(late), 5) == 0
    await shard.endpoint.close()


async def test_a_worker_that_hangs_while_it_drains_does_not_wait(place: Place) -> None:
    worker, shard, _, ending = await asked_with_a_session(place)
    worker.worker.unhealthy.set_result("a step does not end")
    assert await asyncio.wait_for(ending, 5) == HUNG_EXIT
    await shard.endpoint.close()


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
