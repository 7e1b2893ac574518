"""From the detector's probabilities to speech and pauses: the judgement of one session. Pure; times in ms of input.

Rule 1. Speech begins with `min_speech` of frames in a row at or over the threshold, dated at the first of them.
Rule 2. Silence is unbroken. A frame at or over the threshold starts its count again; one under the negative
        threshold begins or continues it; one between the two continues it, and ends nothing.
Rule 3. How much silence ends a turn is fixed (`server_vad`), or depends on how finished the turn sounds
        (`semantic_vad`): then the hard maximum holds until the end-of-turn model has answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from duologue.protocol.duplex import RealtimeProtocolError, SemanticVad, ServerVad, SessionConfig, TurnDetection
from duologue.session.core.limits import SessionLimits

RATE_HZ = 16_000
FRAME = 512
"""Samples that the detector judges at once."""
FRAME_BYTES = FRAME * 4
FRAME_MS = FRAME * 1000 / RATE_HZ
ASK_MS = 192.0
"""The end-of-turn model is asked about a pause when it is so long."""
WINDOW_MS = 8000
"""How much of the turn it is given."""
NEVER = -1.0
UNAVAILABLE = "server_vad_unavailable"


class Patience(NamedTuple):
    """How long a silence ends a turn, by the probability that the turn is finished."""

    hard_ms: float
    sure: float = 2.0
    sure_ms: float = 0.0
    likely: float = 2.0
    likely_ms: float = 0.0

    def silence_ms(self, finished: float) -> float:
        if finished >= self.sure:
            return self.sure_ms
        return self.likely_ms if finished >= self.likely else self.hard_ms


_EAGERNESS = {
    "low": (0.9, 900.0, 0.6, 2000.0),
    "medium": (0.8, 500.0, 0.5, 1200.0),
    "high": (0.6, 320.0, 0.35, 700.0),
    "auto": (0.8, 500.0, 0.5, 1200.0),
}


class Rules(NamedTuple):
    """A session's turn detection in numbers."""

    threshold: float
    negative: float
    min_speech_ms: float
    padding_ms: float
    patience: Patience
    asks: bool
    """The end-of-turn model has a say."""


def refusal(limits: SessionLimits, detection: TurnDetection) -> RealtimeProtocolError | None:
    """Why this server cannot do what a session asks for."""
    missing = ""
    if not limits.detects_speech:
        missing = "there is no speech detector on this server"
    elif isinstance(detection, SemanticVad) and not limits.judges_turns:
        missing = "there is no end-of-turn model on this server"
    return RealtimeProtocolError(UNAVAILABLE, missing, param="session.turn_detection") if missing else None


def rules_for(config: SessionConfig, *, plans: bool) -> Rules | None:
    """None: nobody here detects turns. A model that plans its answers does it itself in an auto session."""
    if config.turn_detection is None or (config.auto_response and plans):
        return None
    return rules_of(config.turn_detection, config.auto_response)


@lru_cache(maxsize=256)
def rules_of(detection: TurnDetection, auto: bool) -> Rules:
    """In an auto session nobody waits for the end of a turn, so the end-of-turn model is not asked there."""
    voice = detection if isinstance(detection, ServerVad) else ServerVad()
    if isinstance(detection, ServerVad):
        patience = Patience(detection.silence_duration_ms)
    else:
        graded = _EAGERNESS[detection.eagerness]
        patience = Patience(graded[3]) if auto else Patience(detection.max_pause_ms, *graded)
    return Rules(
        threshold=voice.threshold,
        negative=max(voice.threshold - 0.15, 0.01),
        min_speech_ms=max(FRAME_MS, voice.min_speech_duration_ms),
        padding_ms=voice.prefix_padding_ms,
        patience=patience,
        asks=detection is not voice and not auto,
    )


class Detection(msgspec.Struct):
    """What is remembered of one session."""

    model: bytes = b""
    """The detector's own state after the last frame that was judged."""
    rest: bytes = b""
    """Float32 samples at 16 kHz that fill no frame yet."""
    resampler: bytes = b""
    """Where the stream to 16 kHz stands, for a model of another rate."""
    active: bool = False
    """Somebody speaks, or pauses within a turn."""
    voiced_ms: float = 0.0
    """Voice that may become speech; it began at `voiced_at`."""
    voiced_at: float = 0.0
    silence_ms: float = 0.0
    floor_ms: float = 0.0
    """No turn begins before this: the last one reached so far."""
    heard_at: float = 0.0
    """Session time (s) of the last append."""
    gap_at: float = NEVER
    """Session time (s) at which a gap in the media counts as the silence that is missing."""
    asked: int = 0
    """The ticket of the question whether the turn is finished, about this pause; 0: not asked."""
    finished: float = NEVER
    """The answer."""
    committed: bool = False
    """The last commit was the detector's."""

    def begin(self, floor_ms: float) -> None:
        """Whatever was going on is over, at this time of the input."""
        self.quiet()
        self.floor_ms = floor_ms
        self.committed = False

    def quiet(self) -> None:
        """Nobody speaks."""
        self.active, self.gap_at = False, NEVER
        self.voiced_ms = self.silence_ms = 0.0
        self.asked, self.finished = 0, NEVER


class Change(NamedTuple):
    """Speech has begun or the turn has ended, with frame number `frame` of those followed."""

    frame: int
    began: bool
    at_ms: float
    """When speech began, padding included. Of an end: where the frame ends."""


class Verdict(NamedTuple):
    """What the detector says of a stretch of sound."""

    speech: bool
    """It belongs to speech: pauses within a turn do."""
    began_ms: float = NEVER
    """Speech began in it; its audio is taken from this time of the input on."""

    @property
    def began(self) -> bool:
        return self.began_ms >= 0


def follow(known: Detection, rules: Rules, probabilities: Sequence[float], first_end_ms: float) -> Iterator[Change]:
    """Take frames in, one by one; the first ends at `first_end_ms`. What the caller does about a change (it may
    `begin` anew) is known to the next frame."""
    for frame, probability in enumerate(probabilities):
        end_ms = first_end_ms + frame * FRAME_MS
        if probability >= rules.threshold:
            known.silence_ms, known.asked, known.finished = 0.0, 0, NEVER
            if known.active:
                continue
            if not known.voiced_ms:
                known.voiced_at = end_ms - FRAME_MS
            known.voiced_ms += FRAME_MS
            if known.voiced_ms >= rules.min_speech_ms:
                known.active, known.voiced_ms = True, 0.0
                yield Change(frame, True, max(known.voiced_at - rules.padding_ms, known.floor_ms, 0.0))
            continue
        known.voiced_ms = 0.0
        if not known.active:
            continue
        quiet = probability < rules.negative
        if quiet or known.silence_ms:
            known.silence_ms += FRAME_MS
        if quiet and known.silence_ms >= rules.patience.silence_ms(known.finished):
            known.quiet()
            yield Change(frame, False, end_ms)
