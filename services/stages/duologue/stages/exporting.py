"""What a session holds here, given away between two of its units. Only the link thread is here.

Rule 1. What was begun is answered first: the state is taken when no unit of the session waits or is under way in any
        stage of this worker, and it leaves behind everything that was made of them.
Rule 2. Nothing is lost by asking. The session stays until it is closed, and whatever comes for it takes the question
        back; an answer carries the number of its question, so that a late one is told apart.
Rule 3. A state is bounded, all stages of a session together; a larger one stays (`state_too_large`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from duologue.bus.link import Link
from duologue.bus.messages import ExportRefused, ExportStages, StagesExported
from duologue.stages.counts import WorkerCounts
from duologue.stages.door import Binding, Export
from duologue.stages.hosted import HostedStage

NOT_NOW = "not_now"


class Keep(Protocol):
    """Send, or keep until there is credit. False: there is no room for it."""

    def __call__(self, binding: Binding, message: StagesExported, frames: Sequence[bytes]) -> bool: ...


class Exporter:
    """See the module. `stages`: those of the worker, by pipeline and index."""

    def __init__(
        self, stages: Mapping[tuple[str, int], HostedStage], counts: WorkerCounts, keep: Keep, max_bytes: int
    ) -> None:
        self._stages, self._counts, self._keep, self._max_bytes = stages, counts, keep, max_bytes

    def ask(self, binding: Binding | None, link: Link, message: ExportStages) -> None:
        """A shard wants the state, or (ticket 0) wants it no more."""
        if binding is None:
            self._refuse(link, message, "", "stage_not_open", "the session has no slot in this worker")
            return
        binding.export = None
        if not message.ticket:
            return
        stages = [self._stages[binding.pipeline, index] for index in binding.cursors]
        if binding.opening or not all(stage.engine.exports for stage in stages):
            self._refuse(link, message, binding.pipeline, "unsupported", "not every stage of it exports, or is open")
            return
        binding.export = Export(message.ticket)
        self.look(binding)

    def look(self, binding: Binding) -> None:
        """Something of the session is over: perhaps all of it is."""
        export = binding.export
        if export is None or export.states is not None:
            return
        if any(cursor.started or cursor.waiting for cursor in binding.cursors.values()):
            return
        export.states = {}
        for index, cursor in binding.cursors.items():
            self._stages[binding.pipeline, index].export(cursor, export.ticket)

    def took(self, binding: Binding, stage: HostedStage, ticket: int, state: bytes | None, why: str) -> None:
        """An engine has answered."""
        export = binding.export
        if export is None or export.states is None or export.ticket != ticket:
            return  # taken back meanwhile
        if state is None:
            code = "engine_error" if why else NOT_NOW
            self.withhold(binding, code, why or f"stage {stage.spec.name} is not between two units")
            return
        export.states[stage.index] = state
        export.size += len(state)
        if export.size > self._max_bytes:
            text = f"{export.size} bytes, and [stages] max_export_bytes is {self._max_bytes}"
            self.withhold(binding, "state_too_large", text)
        elif len(export.states) == len(binding.cursors):
            self._tell(binding, export, export.states)

    def withhold(self, binding: Binding, code: str, why: str) -> None:
        """It stays here after all."""
        export, binding.export = binding.export, None
        if export is not None and binding.link is not None:
            message = ExportStages(binding.session_id, binding.fence, export.ticket)
            self._refuse(binding.link, message, binding.pipeline, code, why)

    def _tell(self, binding: Binding, export: Export, states: Mapping[int, bytes]) -> None:
        stages = tuple(sorted(states))
        told = StagesExported(binding.session_id, binding.fence, export.ticket, stages)
        if self._keep(binding, told, [states[stage] for stage in stages]):
            self._counts.export(binding.pipeline, "exported")
            export.states = {}  # they are on their way; nothing leaves for the session now
        else:
            self.withhold(binding, "stage_output_overflow", "the session does not take the output of its stages")

    def _refuse(self, link: Link, asked: ExportStages, pipeline: str, code: str, why: str) -> None:
        self._counts.export(pipeline, code)
        link.send(ExportRefused(asked.session_id, asked.fence, asked.ticket, code, why))
