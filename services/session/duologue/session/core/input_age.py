"""How long the input of a session has waited for its model, and the end of that patience. SANS-I/O.

A model that is slower than real time leaves ever more input behind it. Sound that came so long ago that nobody waits
for its answer any more is worth less than a client that knows: beyond `max_input_age_s` further sound is refused, and
the delay grows no further. What a client sends at once is as old as its arrival, not as long as it lasts: a model
that is fast enough works it off.

Rule 1. Only of sessions whose model hears all the time: a turn that was committed is an answer that takes its time.
Rule 2. Arrival is noted by marks, one a quarter of a second at most: they are as many as the limit has quarters.
"""

from __future__ import annotations

from typing import Final

from duologue.protocol.duplex import RealtimeProtocolError
from duologue.session.core.context import SessionContext

MARK_S: Final = 0.25
RETRY_AFTER_MS: Final = 500


def note(ctx: SessionContext) -> None:
    """After an append of an auto session was pumped: what of it waits?"""
    sound = ctx.state.sound
    marks = sound.marks
    if len(sound.feed.pcm) < ctx.unit_bytes:
        if marks:
            marks.clear()
        return
    _settle(ctx)
    through_ms = ctx.state.intake.clock_ms
    if marks and ctx.now - marks[-1][1] < MARK_S:
        marks[-1] = (through_ms, marks[-1][1])
    else:
        marks.append((through_ms, ctx.now))


def age_s(ctx: SessionContext) -> float:
    """How long ago the oldest sound came that could be a unit and was not submitted."""
    sound = ctx.state.sound
    if not sound.marks or len(sound.feed.pcm) < ctx.unit_bytes:
        return 0.0
    _settle(ctx)
    return ctx.now - sound.marks[0][1] if sound.marks else 0.0


def check(ctx: SessionContext) -> None:
    """Raises RealtimeProtocolError `input_backpressure` where the model is too far behind for more."""
    if ctx.state.sound.marks and ctx.auto and age_s(ctx) > ctx.limits.max_input_age_s:
        ctx.observed.model_behind(ctx.now)
        raise RealtimeProtocolError(
            "input_backpressure",
            f"the model is more than {ctx.limits.max_input_age_s:g} s behind",
            param="audio",
            retry_after_ms=RETRY_AFTER_MS,
        )


def _settle(ctx: SessionContext) -> None:
    """Forget the marks of what has been submitted."""
    sound = ctx.state.sound
    start_ms = sound.feed.segments[0].start_ms
    while sound.marks and sound.marks[0][0] <= start_ms:
        del sound.marks[0]
