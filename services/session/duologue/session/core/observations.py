"""What a session measures of itself, for whoever runs it. SANS-I/O.

Rule 1. Plain numbers beside the state, never in it: the session decides nothing by them, no checkpoint holds them.
Rule 2. Bounded: of each latency the last `KEPT` since somebody took them; of the lag one sample a second.
"""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT: Final = 64
LAG_EVERY_S: Final = 1.0
_NEVER: Final = -1.0


class Observations:
    """Counts since the session is here, and latencies in seconds. Times are session time."""

    __slots__ = (
        "_heard_at",
        "_lag_s",
        "_lag_due_at",
        "_probe_at",
        "_probe_ms",
        "_run_from",
        "_speech_at",
        "_spoke_at",
        "_turn_ended_at",
        "barge_in_s",
        "behind_at",
        "faults",
        "first_audio_s",
        "late_acks",
        "overflows",
        "purged",
        "rebuild_s",
        "rebuild_units",
        "rebuilds",
        "rejected",
        "told_beyond",
        "tokens",
        "uncovered",
        "unit_lag_s",
        "unpaced",
    )

    def __init__(self) -> None:
        self.overflows: dict[str, int] = {}
        """Output overflows, by the policy that was carried out."""
        self.faults: dict[str, int] = {}
        """Exceptions of ours: restored | closed."""
        self.purged = 0
        """Audio events that left the output buffer because their response was stopped."""
        self.unpaced = 0
        """Outputs told ahead of their time because too many waited for theirs."""
        self.uncovered = 0
        """Events freed because their checkpoint was late."""
        self.told_beyond = 0
        """Events of an owner before us that its last checkpoint does not contain."""
        self.late_acks = 0
        """Playback acknowledgements that changed nothing."""
        self.rejected = 0
        """Commands of the client that were refused with `input_backpressure`."""
        self.behind_at = _NEVER
        """When sound was last refused because the model was too far behind."""
        self.tokens: dict[str, int] = {}
        """What the model counted, by kind."""
        self.rebuilds: dict[tuple[str, str], int] = {}
        """Contexts that were rebuilt, by kind (input, history) and outcome."""
        self.rebuild_units = 0
        """Units that were replayed for them."""
        self.rebuild_s: deque[float] = deque(maxlen=KEPT)
        self.first_audio_s: deque[float] = deque(maxlen=KEPT)
        self.barge_in_s: deque[float] = deque(maxlen=KEPT)
        self.unit_lag_s: deque[float] = deque(maxlen=KEPT)
        self._turn_ended_at = self._spoke_at = self._speech_at = self._run_from = _NEVER
        self._probe_at = self._probe_ms = _NEVER
        self._lag_due_at = self._heard_at = self._lag_s = 0.0

    def rebuilt(self, kind: str, outcome: str, took_s: float, units: int) -> None:
        """The rebuild of a context is over."""
        self.rebuilds[kind, outcome] = self.rebuilds.get((kind, outcome), 0) + 1
        self.rebuild_units += units
        self.rebuild_s.append(took_s)

    # -- first audio --------------------------------------------------------------------------------------

    def turn_ended(self, at: float) -> None:
        """The user's turn was over at `at`, or an answer was asked for then."""
        self._turn_ended_at = at

    def turn_ended_in_input(self, behind_ms: float) -> None:
        """The model says that it was over so much sound before the last that came."""
        self._turn_ended_at = max(self._heard_at - max(behind_ms, 0.0) / 1000, 0.0)

    def answered(self, now: float) -> None:
        """A response opens for the turn; without one that is known, it begins now."""
        if self._turn_ended_at < 0:
            self._turn_ended_at = now

    def answered_unasked(self) -> None:
        """The model speaks by itself: what it answers is the speech that it heard last."""
        if self._turn_ended_at < 0:
            self._turn_ended_at = self._spoke_at

    def first_audio(self, now: float) -> None:
        if self._turn_ended_at >= 0:
            self.first_audio_s.append(now - self._turn_ended_at)
        self._turn_ended_at = self._spoke_at = _NEVER

    # -- barge-in -----------------------------------------------------------------------------------------

    def heard(self, now: float, ms: float, *, speech: bool) -> None:
        """One append of the user."""
        self._heard_at = now
        if not speech:
            self._run_from = _NEVER
            return
        self._spoke_at = now
        if self._run_from < 0:
            self._run_from = now - ms / 1000

    def speech_started(self, behind_ms: float) -> None:
        """Speech is announced that began so much sound before the last that came."""
        self._speech_at = max(self._heard_at - max(behind_ms, 0.0) / 1000, 0.0)

    def interrupted(self, now: float) -> None:
        """Speech stops the response: announced speech, or the run of appends that are speech."""
        began = self._speech_at if self._speech_at >= 0 else self._run_from
        if began >= 0:
            self.barge_in_s.append(now - began)
        self._speech_at = self._run_from = _NEVER

    def turn_over(self) -> None:
        self._speech_at = _NEVER

    # -- lag ----------------------------------------------------------------------------------------------

    def model_behind(self, now: float) -> None:
        """Sound is refused: what came before it waits too long already."""
        self.behind_at = now

    def unit_complete(self, at_ms: float, now: float) -> None:
        """Input up to `at_ms` can be submitted: how long until the stages are through with it?"""
        if self._probe_at < 0 and now >= self._lag_due_at:
            self._probe_at, self._probe_ms = now, at_ms
            self._lag_due_at = now + LAG_EVERY_S

    def unit_landed(self, through_ms: float, now: float) -> None:
        """All stages are through with a unit of input."""
        if self._probe_at >= 0 and through_ms >= self._probe_ms:
            self._lag_s = now - self._probe_at
            self.unit_lag_s.append(self._lag_s)
            self._probe_at = _NEVER

    def lag_s(self, now: float) -> float:
        """How far the model was behind when it was last measured, or is by now, if it is measured now and worse."""
        return self._lag_s if self._probe_at < 0 else max(self._lag_s, now - self._probe_at)

    def input_dropped(self) -> None:
        """What was to be measured may never be submitted."""
        self._probe_at = _NEVER
