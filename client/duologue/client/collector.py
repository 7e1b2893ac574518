"""Everything that happened in a session, with its times, and what it amounts to.

    collector = EventCollector()
    client.observe(collector)
    ...
    print(collector.timing_summary())

Rule 1. Bounded: the newest `max_events` events and `max_responses` answers are kept; what goes is counted, and still
        counts in the summary's totals.
Rule 2. It is told before any queue: a listener that does not keep up does not change what is measured.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from duologue.client.config import AudioFormat
from duologue.client.events import ConnectionResumed, Event
from duologue.client.observer import Observer
from duologue.client.timing import ResponseTiming, Spread, TimingSummary
from duologue.protocol.duplex import AudioDelta, OverlapDecision, ResponseDone, SpeechStopped

MAX_EVENTS: Final = 10_000
MAX_RESPONSES: Final = 1_000
MAX_GAPS: Final = 1_000
"""Of one answer."""
_COMMITS: Final = frozenset({"input_audio_buffer.commit", "input.commit"})


class Seen(msgspec.Struct, frozen=True):
    """One event, and when it came (seconds of the collector's clock)."""

    at: float
    event: Event


class EventCollector(Observer):
    """Pass it to `observe` of a client, or feed it with `received`."""

    def __init__(
        self,
        *,
        max_events: int = MAX_EVENTS,
        max_responses: int = MAX_RESPONSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Events by wire type, all that were seen."""
        self.dropped_events = 0
        self.dropped_responses = 0
        self._seen: deque[Seen] = deque()
        self._max_events, self._max_responses = max_events, max_responses
        self._clock = clock
        self._timings: dict[str, ResponseTiming] = {}
        self._input_ended_at: float | None = None
        self._told_by_caller = False
        self._statuses: Counter[str] = Counter()
        self._barge_ins = 0
        self._audio_ms = 0.0

    @property
    def seen(self) -> tuple[Seen, ...]:
        """The events that are kept, oldest first."""
        return tuple(self._seen)

    @property
    def types(self) -> list[str]:
        """Their wire types."""
        return [seen.event.type for seen in self._seen]

    @property
    def responses(self) -> tuple[ResponseTiming, ...]:
        """The answers that are kept, oldest first."""
        return tuple(self._timings.values())

    def speech_ended(self) -> None:
        """The user has just stopped speaking: whoever plays the sound knows that best. Without it the turn ends with
        a commit, the server's `speech_stopped`, or a `response.create` without either. It counts for the next answer
        that begins to sound."""
        self._input_ended_at, self._told_by_caller = self._clock(), True

    # -- Observer ---------------------------------------------------------------------------------------

    def sent(self, command: dict[str, Any]) -> None:
        kind = command.get("type")
        if kind in _COMMITS or (kind == "response.create" and self._input_ended_at is None):
            self._input_ended(self._clock())

    def _input_ended(self, now: float) -> None:
        if not self._told_by_caller:
            self._input_ended_at = now

    def received(self, event: Event) -> None:
        now = self._clock()
        self.counts[event.type] += 1
        if len(self._seen) >= self._max_events:
            self._seen.popleft()
            self.dropped_events += 1
        self._seen.append(Seen(now, event))
        match event:
            case SpeechStopped():
                self._input_ended(now)
            case OverlapDecision() if event.action == "barge_in":
                self._barge_ins += 1
            case AudioDelta():
                self._sound(event, now)
            case ResponseDone():
                self._done(event, now)
            case ConnectionResumed():
                return
            case _ if response_id := getattr(event, "response_id", UNSET):
                if event.type.startswith("response.") and isinstance(response_id, str):
                    self._timing(response_id, now)

    def _timing(self, response_id: str, now: float) -> ResponseTiming:
        timing = self._timings.get(response_id)
        if timing is None:
            if len(self._timings) >= self._max_responses:
                del self._timings[next(iter(self._timings))]
                self.dropped_responses += 1
            timing = self._timings[response_id] = ResponseTiming(response_id, None, now)
        return timing

    def _sound(self, event: AudioDelta, now: float) -> None:
        timing = self._timing(event.response_id, now)
        if timing.first_audio_at is None:
            timing.input_ended_at, self._input_ended_at = self._input_ended_at, None
            self._told_by_caller = False
        duration_ms = _duration_ms(event, timing)
        self._audio_ms += duration_ms
        timing.sound(duration_ms, now, MAX_GAPS)

    def _done(self, event: ResponseDone, now: float) -> None:
        timing = self._timing(event.response_id, now)
        timing.done_at, timing.status = now, event.response.status
        self._statuses[timing.status] += 1

    # -- what it amounts to -----------------------------------------------------------------------------

    def timing_summary(self) -> TimingSummary:
        """Totals of everything seen; spreads of the answers that are kept."""
        timings = self.responses
        heard = [timing for timing in timings if timing.chunks]
        return TimingSummary(
            events=self.counts.total(),
            speaks=self.counts["response.speak"],
            listens=self.counts["response.listen"],
            barge_ins=self._barge_ins,
            responses=self._statuses.total() + sum(timing.done_at is None for timing in timings),
            completed=self._statuses["completed"],
            cancelled=self._statuses["cancelled"],
            failed=self._statuses["failed"],
            errors=self.counts["error"],
            resumes=self.counts["connection.resumed"],
            audio_ms=round(self._audio_ms, 3),
            first_audio_ms=Spread.of([ms for timing in timings if (ms := timing.first_audio_ms) is not None]),
            begun_to_audio_ms=Spread.of([ms for timing in timings if (ms := timing.begun_to_audio_ms) is not None]),
            gap_ms=Spread.of([gap for timing in heard for gap in timing.gaps_ms]),
            starved_ms=Spread.of([timing.starved_ms for timing in heard]),
        )


def _duration_ms(event: AudioDelta, timing: ResponseTiming) -> float:
    """Of one piece of sound: by its format, else by what the server says has been made of the answer."""
    if event.sample_rate_hz is not UNSET and event.sample_rate_hz > 0:
        return len(event.delta) / AudioFormat(event.format, event.sample_rate_hz).bytes_per_ms
    if event.metadata is not UNSET:
        return max(0.0, event.metadata.playback.generated_ms - timing.audio_ms)
    return 0.0
