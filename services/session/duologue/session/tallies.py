"""What is counted over all sessions of a shard, sessions that have ended included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from duologue.runtime import metrics

SAMPLE: Final = 16
"""Of so many facts one is timed."""


class Tallies:
    """Plain numbers, and the histograms that are observed as things happen."""

    def __init__(self) -> None:
        self.shed = 0
        """Facts that a full mailbox did not take."""
        self.credit_waits = 0
        """Times that a session's output waited for the credit of its gateway."""
        self.stale: Counter[str] = Counter()
        """What came too late to mean anything, of sessions that have ended, by kind."""
        self.handle_s = metrics.SESSION_HANDLE.observe
        self.checkpoint_bytes = metrics.SESSION_CHECKPOINT_BYTES.observe
        self.checkpoint_s = metrics.SESSION_CHECKPOINT_LATENCY.observe

    def ended(self, stale: Mapping[str, int]) -> None:
        self.stale.update(stale)
