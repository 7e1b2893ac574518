"""A stage worker on the in-memory bus, with engines that tests command, and the shards that talk to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from duologue.bus.link import Endpoint, Frame, Link, LinkHandler, Peer, PeerLost
from duologue.bus.memory import MemoryHub
from duologue.bus.messages import AnyMessage, Append, OpenStages
from duologue.fence import StageFence
from duologue.model.engine import (
    NEXT,
    NO_UNIT,
    SESSION,
    Emission,
    EngineUsage,
    Failure,
    Slot,
    StageEngine,
    StageRefused,
    StageUnit,
)
from duologue.model.pipeline import StageSpec
from duologue.stages.hosted import HostedStage
from duologue.stages.worker import StageWorker

FENCE = StageFence(1, 1, 0)


class FakeEngine(StageEngine):
    """Sends on what it gets. A head of `fail`, `raise`, `keep` or `hold` does what it says."""

    def __init__(self, to: int, blocking: bool = False) -> None:
        self.to = to
        self.blocking = blocking
        self.calls: list[str] = []
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()
        self.released = threading.Event()
        self.held = threading.Event()
        self.ready: list[Emission] = []
        self.config_refused = False
        self.exports = True
        self.state: bytes | None = b"state"
        """`raise`: it fails on it."""

    def open(self, slot: Slot, config: bytes) -> None:
        self.calls.append(f"open {slot.index}.{slot.incarnation}")
        if config == b"refuse":
            raise StageRefused("context_exhausted", "too long")
        if config == b"raise":
            raise ValueError("a bug")

    def append_batch(self, batch: Sequence[StageUnit]) -> Sequence[Emission]:
        self.threads.add(threading.current_thread().name)
        self.batches.append([unit.unit for unit in batch])
        heads = [unit.head for unit in batch]
        if b"raise" in heads:
            raise ValueError("a bug")
        if b"hold" in heads:
            self.held.set()
            self.released.wait(20)
            return [*map(self._emission, batch), *self.read()]
        return [self._emission(unit) for unit in batch if unit.head != b"keep"]

    def _emission(self, unit: StageUnit) -> Emission:
        failure = Failure("engine_error", "as told") if unit.head == b"fail" else None
        return Emission(unit.slot, self.to, unit.unit, unit.turn_id, unit.head, unit.frames, failure=failure)

    def blocks(self, batch: Sequence[StageUnit]) -> bool:
        return self.blocking or any(unit.head in (b"hold", b"block") for unit in batch)

    def read(self) -> Sequence[Emission]:
        ready, self.ready = self.ready, []
        return ready

    def say(self, slot: Slot, head: bytes, unit: int = NO_UNIT) -> None:
        """Make something between appends."""
        self.ready.append(Emission(slot, self.to, unit, 0, head))
        self.wake()

    def cancel(self, slot: Slot, epoch: int) -> None:
        self.calls.append(f"cancel {slot.index}.{slot.incarnation} {epoch}")

    def export_state(self, slot: Slot) -> bytes | None:
        self.calls.append(f"export {slot.index}.{slot.incarnation}")
        if self.state == b"raise":
            raise ValueError("a bug")
        return self.state

    def import_state(self, slot: Slot, state: bytes) -> None:
        self.calls.append(f"import {slot.index}.{slot.incarnation} {state.decode()}")
        if state == b"refuse":
            raise StageRefused("state_unreadable", "of another version")

    def control(self, slot: Slot, kind: str, body: bytes) -> None:
        self.calls.append(f"control {slot.index}.{slot.incarnation} {kind} {body.decode()}")

    def close(self, slot: Slot) -> None:
        self.calls.append(f"close {slot.index}.{slot.incarnation}")

    def usage(self) -> EngineUsage:
        return EngineUsage(0, 0)


class NoCredit(Link):
    """A link that takes what needs no credit, and the rest once it is told to."""

    def __init__(self, link: Link | None) -> None:
        assert link is not None
        self.peer = link.peer
        self.credit = False
        self.sent: list[AnyMessage] = []

    def send(self, message: AnyMessage, frames: Sequence[Frame] = ()) -> bool:
        if not self.credit and message.needs_credit:
            return False
        self.sent.append(message)
        return True

    def flush(self) -> None:
        """Everything is sent already."""

    def drop(self, reason: str) -> None:
        """Nobody is at the other end."""


async def until(condition: Callable[[], bool]) -> None:
    """Let everybody else run until this holds."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")


class Shard(LinkHandler):
    """The other end: everything that came, and a way to wait for more."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.got: list[tuple[AnyMessage, tuple[bytes, ...]]] = []
        self.lost: list[str] = []
        self.endpoint: Endpoint | None = None
        self._news = asyncio.Event()

    def on_ready(self, link: Link) -> None:
        self.link = link
        self._news.set()

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        self.got.append((message, tuple(frames)))
        self._news.set()

    def on_credit(self, link: Link) -> None:
        self._news.set()

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        self.lost.append(lost.reason)
        self._news.set()

    async def linked(self) -> Link:
        while self.link is None:
            await self._wait()
        return self.link

    async def expect(self, kind: type[AnyMessage] | Any, count: int = 1) -> list[Any]:
        """The first `count` messages of this kind, taken out of what has come."""
        async with asyncio.timeout(10):
            while sum(isinstance(message, kind) for message, _ in self.got) < count:
                await self._wait()
        taken = [message for message, _ in self.got if isinstance(message, kind)][:count]
        self.got = [pair for pair in self.got if not any(pair[0] is message for message in taken)]
        return taken

    async def _wait(self) -> None:
        self._news.clear()
        async with asyncio.timeout(10):
            await self._news.wait()

    def send(self, message: AnyMessage, *frames: bytes) -> None:
        assert self.link is not None and self.link.send(message, frames)

    def open(self, session: str, fence: StageFence = FENCE, *configs: bytes, stages: tuple[int, ...] = (0, 1)) -> None:
        self.send(OpenStages(session, fence, "p", stages), *(configs or (b"",) * len(stages)))

    def append(self, session: str, unit: int, head: bytes = b"", fence: StageFence = FENCE, **more: Any) -> None:
        self.send(Append(session, fence, more.pop("stage", 0), unit, 0, **more), head, b"sound")


class Rig:
    """A worker with stages 0 and 1 of the pipeline `p`; stage 1 speaks to the session (or to stage 2)."""

    def __init__(
        self,
        *,
        last_to: int = SESSION,
        blocking: bool = False,
        max_kept_bytes: int = 1024,
        max_export_bytes: int = 64,
        **spec: Any,
    ) -> None:
        self.hub = MemoryHub()
        loop = asyncio.get_running_loop()
        self.worker = StageWorker(loop, max_kept_bytes=max_kept_bytes, max_export_bytes=max_export_bytes)
        self.engines = [FakeEngine(NEXT, blocking), FakeEngine(last_to, blocking)]
        self.stages = []
        for index, engine in enumerate(self.engines):
            stage = StageSpec(name=f"stage{index}", engine="x:y", worker="w", **{"slots": 4, **spec})
            engine.max_batch = stage.max_batch
            self.stages.append(HostedStage("p", index, stage, engine, loop, self.worker))
        self.worker.host(self.stages)
        self.endpoint = self.hub.endpoint(Peer("w1", "worker", "w-1"), self.worker, "memory://w1")
        self._shards: list[Shard] = []

    async def start(self) -> Rig:
        await self.endpoint.start()
        return self

    async def shard(self, name: str = "s1", incarnation: str = "s-1") -> Shard:
        shard = Shard()
        shard.endpoint = self.hub.endpoint(Peer(name, "shard", incarnation), shard)
        await shard.endpoint.start()
        shard.endpoint.dial("w1", "memory://w1")
        await shard.linked()
        self._shards.append(shard)
        return shard

    async def close(self) -> None:
        self.worker.stop()
        for engine in self.engines:
            engine.released.set()
        for shard in self._shards:
            if shard.endpoint is not None:
                await shard.endpoint.close()
        await self.endpoint.close()
        for stage in self.stages:
            assert stage.steps.stop(5)
