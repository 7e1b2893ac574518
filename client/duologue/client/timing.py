"""What a conversation felt like, in numbers. All times in milliseconds, as the client saw them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """How a measure is spread. All 0 when there is none."""

    count: int = 0
    min: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Percentiles are values that occurred: the smallest that is not below that share of all."""
        if not values:
            return cls()
        ordered = sorted(values)

        def at(share: float) -> float:
            return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)

        return cls(len(ordered), round(ordered[0], 3), at(0.5), at(0.95), round(ordered[-1], 3))


class ResponseTiming:
    """One answer, as it arrived. Times are those of the collector's clock, in seconds."""

    def __init__(self, response_id: str, input_ended_at: float | None, begun_at: float) -> None:
        self.response_id = response_id
        self.input_ended_at = input_ended_at
        """When the user's turn ended, if that is known and this is the first answer after it."""
        self.begun_at = begun_at
        """At its first event."""
        self.first_audio_at: float | None = None
        self.done_at: float | None = None
        self.status = "in_progress"
        self.chunks = 0
        self.audio_ms = 0.0
        self.gaps_ms: list[float] = []
        """Between two pieces of sound."""
        self.starved_ms = 0.0
        """How long a player that began with the first piece stood still for want of the next."""
        self._last_audio_at = 0.0
        self._dry_at = 0.0

    def sound(self, duration_ms: float, now: float, max_gaps: int) -> None:
        """A piece of sound has arrived."""
        if self.first_audio_at is None:
            self.first_audio_at = self._dry_at = now
        else:
            if len(self.gaps_ms) < max_gaps:
                self.gaps_ms.append((now - self._last_audio_at) * 1000)
            if now > self._dry_at:
                self.starved_ms += (now - self._dry_at) * 1000
                self._dry_at = now
        self.chunks += 1
        self.audio_ms += duration_ms
        self._last_audio_at = now
        self._dry_at += duration_ms / 1000

    @property
    def first_audio_ms(self) -> float | None:
        """From the end of the user's turn to the first sound."""
        if self.first_audio_at is None or self.input_ended_at is None:
            return None
        return (self.first_audio_at - self.input_ended_at) * 1000

    @property
    def begun_to_audio_ms(self) -> float | None:
        """From the first event of the answer to its first sound."""
        return None if self.first_audio_at is None else (self.first_audio_at - self.begun_at) * 1000


class TimingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """See `EventCollector.timing_summary`."""

    events: int
    """All that were seen, whether they are still kept or not."""
    speaks: int
    """`response.speak`: how often the model began to speak."""
    listens: int
    """`response.listen`: how often it decided to listen."""
    barge_ins: int
    """`overlap.decision` with the action `barge_in`."""
    responses: int
    completed: int
    cancelled: int
    failed: int
    errors: int
    resumes: int
    audio_ms: float
    """Sound that arrived."""
    first_audio_ms: Spread
    """From the end of the user's turn to the first sound, of each answer for which both are known."""
    begun_to_audio_ms: Spread
    """From the first event of an answer to its first sound."""
    gap_ms: Spread
    """Between two pieces of sound of one answer."""
    starved_ms: Spread
    """Of each answer with sound: how long a player stood still in the middle of it."""
