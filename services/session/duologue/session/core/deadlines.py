"""Everything that happens because time passed. SANS-I/O: time is session time, an argument of `handle`.

`next_deadline` says when a `Tick` is due; `tick` does all that is due by then, in a fixed order. A tick that
comes too early does nothing.
"""

from __future__ import annotations

from duologue.protocol.duplex import SessionExpiring
from duologue.session.core import closing, listening, outputs, pacing, silence, stages, tools, turns
from duologue.session.core.context import SessionContext

WARNING_S = 60.0
CHECKPOINT_SLACK_S = 0.1
"""While input flows its next fact saves the session; a tick of its own would be a wake-up more."""
NEVER = float("inf")


def next_deadline(ctx: SessionContext) -> float | None:
    """The earliest time at which something is due; None when the session is over."""
    state = ctx.state
    life, outbox = state.life, state.outbox
    if life.closing:
        return outbox.saved_at + ctx.limits.journal_deadline_s if outbox.held and not outbox.breaker else None
    # A running minimum, by comparison where nearly every session has the term: this is asked after every turn of every
    # session, and to gather the times first costs twice as much.
    config = state.config
    soonest = config.max_session_s
    if not life.warned and ctx.duplex:
        soonest = min(soonest, max(soonest - WARNING_S, 0.0))
    if life.detached_at < 0:
        ends_at = life.active_at + config.idle_timeout_s
    else:
        ends_at = life.detached_at + config.disconnect_grace_s
    if ends_at < soonest:
        soonest = ends_at
    if outbox.outstanding:
        if outbox.held and not outbox.breaker:
            soonest = min(soonest, outbox.saved_at + ctx.limits.journal_deadline_s)
    elif outbox.dirty:
        save_at = outbox.saved_at + ctx.limits.checkpoint_interval_s + CHECKPOINT_SLACK_S
        if save_at < soonest:
            soonest = save_at
    response, intake = state.response, state.intake
    if response is not None:
        if 0 <= response.next_silence_at < soonest:
            soonest = response.next_silence_at
        if state.sound.paced:
            soonest = min(soonest, pacing.due_at(ctx))
    elif intake.deferred:
        playing = ctx.playing()
        soonest = min(soonest, ctx.now if playing is None else max(playing.ends_at(), ctx.now))
    if 0 <= intake.gap_at < soonest:
        soonest = intake.gap_at
    if 0 <= state.detection.gap_at < soonest:
        soonest = state.detection.gap_at
    if state.aborting.units:
        soonest = min(soonest, state.aborting.since + ctx.limits.abort_wait_s)
    if state.calls:
        soonest = min(soonest, tools.next_expiry(ctx))
    return soonest


def _idle_at(ctx: SessionContext) -> float:
    """An attached session idles by its client's frames; a detached one only has its grace."""
    life = ctx.state.life
    return NEVER if life.detached_at >= 0 else life.active_at + ctx.state.config.idle_timeout_s


def tick(ctx: SessionContext) -> None:
    state = ctx.state
    life, outbox, now = state.life, state.outbox, ctx.now
    waited = now - outbox.saved_at
    if outbox.outstanding and outbox.held and waited >= ctx.limits.journal_deadline_s:
        told = outbox.trip()
        ctx.observed.uncovered += len(told)
        ctx.effects.extend(told)
    if life.closing:
        return
    if now >= state.config.max_session_s:
        closing.close(ctx, "max_session_expired", close_code=1001, expired=True)
        return
    if life.detached_at >= 0 and now >= life.detached_at + state.config.disconnect_grace_s:
        closing.close(ctx, "disconnect_grace_expired", expired=True)
        return
    if now >= _idle_at(ctx):
        closing.close(ctx, "idle_ttl_expired", expired=True)
        return
    _warn(ctx)
    if state.aborting.units and now >= state.aborting.since + ctx.limits.abort_wait_s:
        ctx.stale("abort_unanswered")
        stages.settle_abort(ctx, dropped=False)
    outputs.release(ctx)
    _feed_silence(ctx)
    silence.fill_gap(ctx)
    if state.detection.gap_at >= 0:
        listening.tick(ctx)
    if state.intake.deferred and not ctx.busy():
        turns.promote(ctx)
    if state.calls:
        tools.expire(ctx)
        turns.plan_if_due(ctx)


def _warn(ctx: SessionContext) -> None:
    """Tell once that the maximum is near; at once when less is left."""
    state = ctx.state
    left_s = state.config.max_session_s - ctx.now
    if state.life.warned or left_s > WARNING_S or not ctx.duplex:
        return
    state.life.warned = True
    ctx.emit(
        SessionExpiring(
            event_id=ctx.event_id(),
            session_id=state.session_id,
            expires_at=int(state.opened_unix_s + state.config.max_session_s),
            time_left_ms=round(left_s * 1000),
        )
    )


def _feed_silence(ctx: SessionContext) -> None:
    response = silence.due(ctx)
    while response is not None:
        if not silence.feed(ctx, response):
            turns.after_response(ctx, response)
            return
        response = silence.due(ctx)
