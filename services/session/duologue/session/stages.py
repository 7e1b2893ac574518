"""What comes from the stage workers, to the session it is for.

Rule 1. A message for a session that is not here is counted and dropped: it is late.
Rule 2. A worker's link that goes takes every binding on it along, in the same turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from duologue.bus.link import Link, PeerLost
from duologue.bus.messages import (
    Aborted,
    AnyMessage,
    ExportRefused,
    Output,
    StagesClosed,
    StagesExported,
    StagesOpened,
    StagesRefused,
    UnitFailed,
)
from duologue.model.pipeline import PipelineSpec
from duologue.session.binding import StageBinding
from duologue.session.moving import StageMoves
from duologue.session.workers import StageWorkers
from duologue.store.ports import Registration

_WORKERS = StagesOpened | StagesRefused | UnitFailed | Aborted | StagesClosed | StagesExported | ExportRefused


class StageHub:
    """The bindings of all sessions of a shard."""

    def __init__(self, workers: StageWorkers) -> None:
        self.workers = workers
        self.moves = StageMoves()
        self.moves.on_over = self._move_over
        self.late = 0
        self._bindings: dict[str, StageBinding] = {}
        self._more_move = False
        """Others are about to be asked to leave a draining worker."""

    def __len__(self) -> int:
        return len(self._bindings)

    def bind(self, session_id: str, pipeline: PipelineSpec) -> StageBinding:
        """A binding of this session, not open yet; its `post` is to be set. `release` it at the end."""
        binding = self._bindings[session_id] = StageBinding(session_id, pipeline, self.workers, self.moves)
        return binding

    def release(self, binding: StageBinding) -> None:
        """Close what is open and forget the session. Idempotent."""
        binding.close()
        if self._bindings.get(binding.session_id) is binding:
            del self._bindings[binding.session_id]

    def update(self, members: Iterable[Registration]) -> None:
        """What the roster says now; sessions that wait for a worker may find one."""
        self.workers.update(members)
        self._retry()
        self._leave_draining()

    def _leave_draining(self) -> None:
        """Sessions move away from workers that are being taken out of service."""
        for worker in self.workers:
            if worker.record is None or worker.record.draining_s < 0 or worker.link is None:
                continue
            for binding in list(self._bindings.values()):
                if worker.link in binding.links:
                    binding.leave(worker, at_once=worker.record.draining_s == 0)

    def _move_over(self) -> None:
        """The next ones need not wait for the roster."""
        if not self._more_move:
            self._more_move = True
            asyncio.get_running_loop().call_soon(self._move_more)

    def _move_more(self) -> None:
        self._more_move = False
        self._leave_draining()

    def _retry(self) -> None:
        for binding in list(self._bindings.values()):
            binding.retry()

    # -- from the links --------------------------------------------------------------------------------

    def on_ready(self, link: Link) -> None:
        self.workers.link_ready(link)
        self._retry()

    def on_output(self, link: Link, message: Output, frames: Sequence[bytes]) -> None:
        binding = self._bindings.get(message.session_id)
        if binding is None:
            self.late += 1
        else:
            binding.on_output(link, message, frames)

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> bool:
        """False: it is not a worker's message."""
        if isinstance(message, Output):
            self.on_output(link, message, frames)
            return True
        if not isinstance(message, _WORKERS):
            return False
        binding = self._bindings.get(message.session_id)
        if binding is None:
            self.late += 1
        elif isinstance(message, StagesOpened):
            binding.on_opened(link, message)
        elif isinstance(message, StagesRefused):
            binding.on_refused(link, message)
        elif isinstance(message, UnitFailed):
            binding.on_failed(link, message)
        elif isinstance(message, Aborted):
            binding.on_aborted(message)
        elif isinstance(message, StagesExported):
            binding.on_exported(link, message, frames)
        elif isinstance(message, ExportRefused):
            binding.on_export_refused(link, message)
        return True  # of `StagesClosed` there is nothing to do: slots of an earlier binding are free

    def on_credit(self, link: Link) -> None:
        for binding in self._bindings.values():
            if binding.waits_for(link) and not binding.on_credit(link):
                return

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        hit = [binding for binding in self._bindings.values() if binding.reaches(link)]
        self.workers.link_lost(link)
        for binding in hit:
            binding.on_worker_lost(link, lost.reason)
