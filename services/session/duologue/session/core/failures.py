"""Stages that fail, are lost, or hang: what the session makes of it. SANS-I/O.

Rule 1. A failure ends the open response as failed and nothing else: the next append, commit and update work.
Rule 2. Stages that are refused before they were ever open, or lost again and again, end the session. One that is being
        drained has refused nothing but itself: others are asked, and nothing has happened.
Rule 3. A lost binding is replaced; a unit that was under way at two losses is not tried a third time: the
        session ends with `poison_input`, so that one session cannot take down the fleet. A worker that has no room
        is no loss of anything: no unit was there.
"""

from __future__ import annotations

from duologue.model.outputs import ModelOutput
from duologue.protocol.duplex import ERROR_CODES, RealtimeProtocolError
from duologue.session.core import closing, pacing, playback, responses, stages, tools, turn_signals, turns
from duologue.session.core.commands import StageFailed, StagesLost
from duologue.session.core.context import SessionContext


def unit_failed(ctx: SessionContext, fact: StageFailed) -> None:
    """One unit failed in one stage. A hang is a loss of the worker's state; an error costs the turn."""
    if fact.retryable and fact.code == "context_exhausted" and not _was_tried_again(ctx, fact.unit):
        roll_over(ctx)
        return
    if fact.retryable and fact.code != "context_exhausted":
        lost(ctx, StagesLost(fact.fence, fact.code, fact.message))
        return
    flight = stages.forget(ctx, fact.unit)
    code, message = _told_as(fact)
    if flight is not None and not flight.is_input and pacing.waits(ctx):
        # An answer broke off: what was made of it is heard first.
        pacing.keep(ctx, ModelOutput(error_code=code, error=message), b"")
        return
    if ctx.response is None and not ctx.plans and any(unit < fact.unit for unit in ctx.state.sound.flights):
        # A failure overtakes what later stages still make of earlier units. A response that those opened now
        # would go on with this unit missing in its middle: void them all.
        stages.advance_epoch(ctx)
    promised = ctx.response is not None and ctx.response.promised and flight is not None and flight.is_input
    fail(ctx, code, message)
    if promised and not ctx.auto and ctx.response is None:
        turn_signals.user_again(ctx)


def _was_tried_again(ctx: SessionContext, unit: int) -> bool:
    flight = ctx.state.sound.flights.get(unit)
    return flight is not None and flight.attempt > 0


def roll_over(ctx: SessionContext) -> None:
    """The context is full: what is being said is over, and new stages are given the end of it."""
    stages.unbind(ctx, "context_rollover", death=False)
    end_failed(ctx, "context_exhausted")
    stages.open_stages(ctx)


def _told_as(fact: StageFailed) -> tuple[str, str]:
    """Code and message for the client: a failure that the table knows keeps its name, any other is one of the
    machinery, whatever it calls itself."""
    if fact.code in ERROR_CODES and fact.code != "engine_error":
        return fact.code, fact.message
    return "runtime_append_failed", f"{fact.code}: {fact.message}" if fact.code else fact.message


def fail(ctx: SessionContext, code: str, message: str) -> None:
    """Tell an error of the model, and end the open response as failed."""
    tell(ctx, code, message)
    response = ctx.response
    if response is None:
        stages.pump(ctx)
        return
    end_failed(ctx, code)


def tell(ctx: SessionContext, code: str, message: str) -> None:
    """Tell an error of the model."""
    ctx.error(RealtimeProtocolError(code, message or code))


def end_failed(ctx: SessionContext, reason: str) -> None:
    """The open response ends as failed; what the model was about to say is void."""
    response = ctx.response
    if response is None:
        return
    stages.advance_epoch(ctx)
    playback.purge(ctx, response.id)
    responses.close_response(ctx, response, "failed", reason)
    tools.flush(ctx, response)
    turns.promote(ctx)
    stages.pump(ctx)


def lost(ctx: SessionContext, fact: StagesLost) -> None:
    """The binding is void."""
    state = ctx.state
    code = fact.code or "worker_lost"
    if fact.refused and code == "worker_drained":
        # The shard had not heard of it yet. Nothing was submitted under this binding, so there is nothing to void.
        stages.bind_elsewhere(ctx)
        return
    hopeless = fact.refused or state.binding > ctx.limits.max_stage_deaths
    if hopeless and not state.was_ready:
        ctx.error(RealtimeProtocolError(code, fact.message or code))
        closing.close(ctx, code, close_code=1013 if code == "resource_exhausted" else 1011)
        return
    stages.unbind(ctx, code, death=not fact.refused)
    end_failed(ctx, code)
    if stages.poisonous(ctx):
        ctx.error(RealtimeProtocolError("poison_input", "a unit of input brought down two workers"))
        closing.close(ctx, "poison_input", close_code=1011)
    else:
        stages.open_stages(ctx)
