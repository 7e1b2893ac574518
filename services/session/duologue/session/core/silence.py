"""Silence continuation: the session keeps a turn alive when the client sends nothing. SANS-I/O.

Rule 1. Inside an open response of a model that answers from units; and, for a model that plans, inside speech
        that was announced and not committed yet (a media gap). Never while input waits.
Rule 2. At the pace of the units: the first one a period after the last real unit (and after the gap that the
        client's own appends leave), then one each period; what is later than a period restarts the pace.
Rule 3. At most the model's limit of them for one response, and few in the pipeline at once.
"""

from __future__ import annotations

from duologue.session.core import responses, stages
from duologue.session.core.context import SessionContext
from duologue.session.core.engine_session import OpenResponse, Segment


def expect(ctx: SessionContext) -> None:
    """Set, keep or drop the time of the next silent unit."""
    if ctx.plans:
        _expect_in_gap(ctx)
        return
    response = ctx.state.response
    if response is None:
        return
    if stages.real_input_waits(ctx):
        response.next_silence_at = -1.0
    elif response.next_silence_at < 0:
        response.next_silence_at = max(_first(ctx), ctx.now)


def _expect_in_gap(ctx: SessionContext) -> None:
    intake = ctx.state.intake
    if not (ctx.auto and intake.speech_item) or stages.real_input_waits(ctx):
        intake.gap_at = -1.0
    elif intake.gap_at < 0 and intake.gap_units < limit(ctx):
        intake.gap_at = max(_first(ctx), ctx.now)


def fill_gap(ctx: SessionContext) -> None:
    """Feed the silent units that are due in a media gap."""
    state = ctx.state
    intake = state.intake
    while 0 <= intake.gap_at <= ctx.now:
        if intake.gap_units >= limit(ctx) or not state.ready or state.aborting.units:
            intake.gap_at = -1.0
            return
        intake.gap_units += 1
        _submit(ctx, force_listen=False)
        intake.gap_at += ctx.traits.unit_ms / 1000


def _first(ctx: SessionContext) -> float:
    state = ctx.state
    gap_ms = state.intake.append_ms if ctx.auto else 0.0
    if not state.locked:
        return ctx.now
    return state.last_submit_at + (ctx.traits.unit_ms + gap_ms) / 1000


def heard_input(ctx: SessionContext) -> None:
    """Real input resets the chain."""
    state = ctx.state
    state.intake.gap_at, state.intake.gap_units = -1.0, 0
    response = state.response
    if response is not None:
        response.next_silence_at = -1.0
        response.continuations = 0


def due(ctx: SessionContext) -> OpenResponse | None:
    """The response that is owed a silent unit now. May end it, when the limit is reached."""
    response = ctx.response
    if response is None or response.next_silence_at < 0 or ctx.now < response.next_silence_at:
        return None
    return response


def limit(ctx: SessionContext) -> int:
    return ctx.traits.continuation_auto if ctx.auto else ctx.traits.continuation_turn


def feed(ctx: SessionContext, response: OpenResponse) -> bool:
    """Submit one silent unit; false when the limit was reached and the response has been ended."""
    state = ctx.state
    if response.continuations >= limit(ctx):
        responses.listened(ctx, "continuation_limit", response)
        responses.complete(ctx, response, None)
        return False
    most = min(stages.MAX_SILENCE_IN_FLIGHT, ctx.window)
    if not state.ready or state.aborting.units or state.sound.in_window >= most:
        response.next_silence_at = -1.0
        return True
    response.continuations += 1
    _submit(ctx, force_listen=ctx.auto and response.continuations >= limit(ctx))
    period = ctx.traits.unit_ms / 1000
    late = ctx.now - response.next_silence_at > period
    response.next_silence_at = (ctx.now if late else response.next_silence_at) + period
    return True


def _submit(ctx: SessionContext, *, force_listen: bool) -> None:
    """One silent unit; what waits of an incomplete one is filled up instead."""
    state = ctx.state
    sound = state.sound.feed
    at_ms = state.intake.clock_ms
    if sound.segments:
        rest = ctx.unit_bytes - len(sound.pcm)
        sound.push(bytes(rest), Segment(rest, at_ms, sound.segments[-1].is_speech, force_listen))
        stages.pump(ctx)
    else:
        stages.submit_unit(ctx, ctx.silence, start_ms=at_ms, force_listen=force_listen, continuation=True)
