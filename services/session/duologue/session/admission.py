"""How many sessions a shard takes: in all, and of each pipeline. What is taken is given back, always."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from duologue.session.refusals import exhausted

INHERITED: Final = 1.5
"""How far an heir goes beyond what it takes of new sessions."""


class Admission:
    """A slot belongs to a session id; taking one twice or returning one twice changes nothing."""

    def __init__(self, max_sessions: int, per_pipeline: Mapping[str, int]) -> None:
        self.max_sessions = max_sessions
        self._limits = dict(per_pipeline)
        self._slots: dict[str, str] = {}
        self._used = dict.fromkeys(per_pipeline, 0)
        self.accepting = True
        self.refused: dict[str, int] = {}
        """Sessions turned away, by reason."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def headroom(self) -> int:
        """How many more sessions would be taken now, whatever their pipeline."""
        return max(0, self.max_sessions - len(self._slots)) if self.accepting else 0

    def used(self, pipeline: str) -> int:
        return self._used[pipeline]

    def take(self, session_id: str, pipeline: str) -> None:
        """Raises RealtimeProtocolError `resource_exhausted`."""
        if session_id in self._slots:
            return
        if not self.accepting:
            self._refuse("draining", "this shard takes no more sessions")
        if len(self._slots) >= self.max_sessions:
            self._refuse("shard_full", f"duplex_session_capacity_exhausted: limit={self.max_sessions}")
        if self._used[pipeline] >= self._limits[pipeline]:
            self._refuse("pipeline_full", f"duplex_session_capacity_exhausted: limit={self._limits[pipeline]}")
        self._slots[session_id] = pipeline
        self._used[pipeline] += 1

    def inherit(self, session_id: str, pipeline: str) -> None:
        """Take in a session that another shard had: up to half as many again as new ones are taken in. Raises
        RealtimeProtocolError `resource_exhausted`."""
        if session_id in self._slots:
            return
        if not self.accepting or len(self._slots) >= self.max_sessions * INHERITED:
            self._refuse("heir_full", "this shard inherits no more sessions")
        self._slots[session_id] = pipeline
        self._used[pipeline] += 1

    def turn_away_behind(self) -> None:
        """One more session would only make those that are here slower. Raises RealtimeProtocolError."""
        self._refuse("model_behind", "the model is slower than real time for the sessions that it has")

    def give_back(self, session_id: str) -> None:
        pipeline = self._slots.pop(session_id, None)
        if pipeline is not None:
            self._used[pipeline] -= 1

    def _refuse(self, reason: str, message: str) -> NoReturn:
        self.count_refusal(reason)
        raise exhausted(message)

    def count_refusal(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
