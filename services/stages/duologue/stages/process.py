"""One stage worker process: everything wired, and its life from start to end.

Start: the store answers, the engines are warm, the bus is bound, the worker is registered: then it is ready.
End: it is drained (`drain_s`), the registration is taken back, what is queued goes out, engines shut down.

A step that never ends cannot be stopped: the process signs off and exits with `HUNG_EXIT`, whatever its
threads do, and is started again by its supervisor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from duologue.bus.link import Endpoint, LinkHandler, Peer
from duologue.model.pipeline import PipelineSpec
from duologue.runtime.incarnation import process_incarnation
from duologue.runtime.startup import freeze_gc
from duologue.stages.loading import load
from duologue.stages.registration import Replaced, WorkerRegistration, describe
from duologue.stages.worker import StageWorker
from duologue.store.ports import Registry

_log = logging.getLogger("duologue.stages")

HUNG_EXIT: Final = 75
REPLACED_EXIT: Final = 3
DRAIN_GRACE_S: Final = 2.0
"""Longer than it takes for every shard to hear that the deadline is over, and to close what it has here."""
_STEP_END_S: Final = 2.0
_ENGINE_END_S: Final = 5.0


class MakeEndpoint(Protocol):
    def __call__(self, me: Peer, handler: LinkHandler) -> Endpoint: ...


class Stop(Protocol):
    """Whoever asks the process to end (`runtime.signals.StopSignals`)."""

    async def wait(self) -> object: ...


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker is told."""

    id: str
    group: str
    orphan_s: float = 10.0
    max_kept_bytes: int = 8 * 1024 * 1024
    expiry_s: float = 2.0
    drain_s: float = 0.0
    """How long its sessions may take to move once it is asked to stop; 0: it ends at once."""
    max_export_bytes: int = 8 * 1024 * 1024


class WorkerProcess:
    """`leave` ends the process at once, past threads that do not end. `incarnation`: where it is not the process's own.
    `owns_process`: False where the process is somebody else's, whose garbage collector is left alone."""

    def __init__(
        self,
        options: WorkerOptions,
        pipelines: Sequence[PipelineSpec],
        *,
        registry: Registry,
        make_endpoint: MakeEndpoint,
        leave: Callable[[int], None] = os._exit,
        incarnation: str = "",
        owns_process: bool = True,
    ) -> None:
        self.options = options
        self.incarnation = incarnation or process_incarnation()
        self.metrics_url = ""
        """Told in the registration from the next beat on."""
        self.operator_token = secrets.token_urlsafe(24)
        """What whoever drains this incarnation has to show; told in the registration, as that of a shard."""
        loop = asyncio.get_running_loop()
        self.worker = StageWorker(
            loop,
            orphan_s=options.orphan_s,
            max_kept_bytes=options.max_kept_bytes,
            max_export_bytes=options.max_export_bytes,
        )
        self.endpoint = make_endpoint(Peer(options.id, "worker", self.incarnation), self.worker)
        self.registration = WorkerRegistration(
            registry,
            lambda: describe(
                self.worker,
                options.group,
                options.id,
                self.incarnation,
                self.endpoint.address,
                self.metrics_url,
                self.operator_token,
            ),
            options.expiry_s,
        )
        self._pipelines = pipelines
        self._leave = leave
        self._owns_process = owns_process

    async def start(self) -> None:
        """Raises PipelineError, BusError or StoreUnavailable: nothing is left running then."""
        loop = asyncio.get_running_loop()
        self.worker.host(await load(self._pipelines, self.options.group, loop, self.worker))
        await self.endpoint.start()
        try:
            await self.registration.join()
        except BaseException:
            await self.endpoint.close()
            raise
        self.worker.start()
        if self._owns_process:
            freeze_gc()
        names = ", ".join(f"{stage.pipeline}/{stage.spec.name}" for stage in self.worker.stages.values())
        _log.info("worker %s is ready at %s: %s", self.options.id, self.endpoint.address, names)

    async def run(self, asked_to_stop: Stop) -> int:
        """Serve until asked to stop and drained, replaced, or hung; the exit code."""
        beats = asyncio.create_task(self.registration.run())
        asked = asyncio.create_task(self._until_drained(asked_to_stop))
        hung = self.worker.unhealthy
        ends: list[asyncio.Future[Any]] = [beats, asked, hung]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if hung.done():
                _log.error("worker %s gives up: %s", self.options.id, hung.result())
                return HUNG_EXIT
            if beats.done():
                beats.result()
            return 0
        except Replaced as replaced:
            _log.error("worker %s ends: %s", self.options.id, replaced)
            return REPLACED_EXIT
        finally:
            beats.cancel()
            asked.cancel()
            await asyncio.gather(beats, asked, return_exceptions=True)

    async def _until_drained(self, stop: Stop) -> None:
        """Asked to stop, and nothing left here that somebody talks to, or too late."""
        await stop.wait()
        if not self.options.drain_s:
            return
        self.worker.drain(self.options.drain_s)
        try:
            async with asyncio.timeout(self.worker.draining_s + DRAIN_GRACE_S):
                await self.worker.drained.wait()
        except TimeoutError:
            _log.warning("worker %s ends with %d sessions", self.options.id, len(self.worker.door))

    async def stop(self, code: int) -> None:
        """Sign off and let go of everything."""
        self.worker.accepting = False
        self.worker.stop()
        if code == HUNG_EXIT:
            await self.endpoint.close()  # first: it tells the shards, however long the store takes
            await self.registration.leave()
            self._leave(code)
            return
        await self.registration.leave()
        await self.endpoint.close()
        for stage in self.worker.stages.values():
            if not await asyncio.to_thread(stage.steps.stop, _STEP_END_S):
                _log.warning("the last step of %s/%s is given up", stage.pipeline, stage.spec.name)
                continue
            try:
                async with asyncio.timeout(_ENGINE_END_S):
                    await asyncio.to_thread(stage.engine.shut_down)
            except TimeoutError:
                _log.warning("the engine of %s/%s does not shut down", stage.pipeline, stage.spec.name)
                self._leave(code)
        _log.info("worker %s has ended", self.options.id)
