"""What is counted over all sessions of a shard, sessions that have ended included."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from duologue.runtime import metrics
from duologue.session.core.engine_session import Totals
from duologue.session.core.observations import Observations
from duologue.session.port import SessionMachine

SAMPLE: Final = 16
"""Of so many facts one is timed."""

Observe = Callable[[float], None]


class Tallies:
    """Plain numbers, and the histograms that are observed as things happen."""

    def __init__(self) -> None:
        self.shed = 0
        """Facts that a full mailbox did not take."""
        self.credit_waits = 0
        """Times that a session's output waited for the credit of its gateway."""
        self.stale: Counter[str] = Counter()
        """What came too late to mean anything, of sessions that have ended, by kind."""
        self.drains = 0
        """Times that the shard was asked to hand its sessions over."""
        self.broken = 0
        """Sessions that a fault of ours in the shell has ended."""
        self.input_recorded = 0
        """Units of input that the store has, for rebuilds."""
        self.input_unrecorded = 0
        """Such units that were forgotten because the store did not take them in time."""
        self.input_failures = 0
        """Writes of such units whose outcome is not known; they are repeated."""
        self.rebuilds: Counter[tuple[str, str]] = Counter()
        self.rebuild_units = 0
        """As the sessions that have ended observed them; so are the next."""
        self.late_acks = self.purged = self.rejected = self.unpaced = self.uncovered = self.told_beyond = 0
        """As the sessions that have ended observed them; so are the next."""
        self.overflows: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.totals: dict[str, Totals] = {}
        """What sessions that have ended came to here, by pipeline."""
        self.adoption_s = metrics.SESSION_ADOPTION.observe
        self.handle_s = metrics.SESSION_HANDLE.observe
        self.checkpoint_bytes = metrics.SESSION_CHECKPOINT_BYTES.observe
        self.checkpoint_s = metrics.SESSION_CHECKPOINT_LATENCY.observe

        self.barge_in_s = metrics.SESSION_BARGE_IN.observe
        self.rebuild_s = metrics.SESSION_REBUILD.observe
        self._of_pipeline: dict[str, tuple[Observe, Observe]] = {}

    def ended(self, machine: SessionMachine, pipeline: str) -> None:
        """A session is over: what it counted stays in the sums."""
        observed = machine.observed
        self.stale.update(machine.stale)
        self.late_acks += observed.late_acks
        self.purged += observed.purged
        self.rejected += observed.rejected
        self.unpaced += observed.unpaced
        self.uncovered += observed.uncovered
        self.told_beyond += observed.told_beyond
        self.overflows.update(observed.overflows)
        self.faults.update(observed.faults)
        self.tokens.update(observed.tokens)
        self.rebuilds.update(observed.rebuilds)
        self.rebuild_units += observed.rebuild_units
        self.take(observed, pipeline)

    def came_to(self, pipeline: str, here: Totals) -> None:
        """A session is over, here at least, and has come to this here."""
        self.totals[pipeline] = self.totals.get(pipeline, Totals()).plus(here)

    def take(self, observed: Observations, pipeline: str) -> None:
        """The latencies since the last time, into their histograms."""
        known = self._of_pipeline.get(pipeline)
        if known is None:
            labelled = metrics.SESSION_FIRST_AUDIO.labels(pipeline), metrics.SESSION_UNIT_LAG.labels(pipeline)
            known = self._of_pipeline[pipeline] = labelled[0].observe, labelled[1].observe
        first_audio_s, unit_lag_s = known
        _drain(observed.first_audio_s, first_audio_s)
        _drain(observed.unit_lag_s, unit_lag_s)
        _drain(observed.barge_in_s, self.barge_in_s)
        _drain(observed.rebuild_s, self.rebuild_s)


def _drain(samples: deque[float], observe: Observe) -> None:
    while samples:
        observe(samples.popleft())
