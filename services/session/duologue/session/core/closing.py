"""The end of a session, once and for all: an open response first, then exactly one terminal event. SANS-I/O."""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import RealtimeProtocolError, SessionClosed, SessionExpired, error_event
from duologue.session.core import input_state, playback, responses, tools
from duologue.session.core.context import SessionContext
from duologue.session.core.effects import Close, CloseStages

TOO_LONG = "close_details_exceed_output_limit"


def close(ctx: SessionContext, reason: str, *, close_code: int = 1000, expired: bool = False) -> None:
    """End the session. What is open is ended as cancelled; stages are freed before the terminal event is told."""
    state = ctx.state
    if state.life.closing:
        return
    response = ctx.response
    if response is not None:
        playback.purge(ctx, response.id)
        responses.close_response(ctx, response, "cancelled", "session_closed")
        tools.flush(ctx, response)
    input_state.clear(ctx)
    state.intake.queue, state.intake.queue_bytes, state.intake.offload = [], 0, 0
    sound = state.sound
    sound.flights, sound.flight_bytes, sound.in_window = {}, 0, 0
    state.aborting.units, state.aborting.dropped = [], []
    ctx.effects.append(CloseStages(state.fence))
    ctx.overflow = False
    state.turn_state = "idle"
    state.life.closing, state.life.reason = True, reason
    _tell(ctx, reason, close_code, expired)


def _tell(ctx: SessionContext, reason: str, close_code: int, expired: bool) -> None:
    state = ctx.state
    if len(msgspec.json.encode(reason)) + 256 > ctx.limits.close_slot_bytes:
        reason = TOO_LONG
    event: SessionExpired | SessionClosed
    if expired:
        event = SessionExpired(event_id=ctx.event_id(), session_id=state.session_id, reason=reason)
    else:
        event = SessionClosed(event_id=ctx.event_id(), session_id=state.session_id, reason=reason, event={})
    before = state.outbox.n
    ctx.emit(event, close_code=close_code, close_reason=reason)
    if state.outbox.n == before and state.life.detached_at < 0:
        refusal = RealtimeProtocolError("session_closed", f"the session was closed: {reason}")
        ctx.emit(error_event(refusal, ctx.event_id()), close_code=close_code, close_reason=reason)


def finish(ctx: SessionContext) -> None:
    """Once the terminal event is on its way the shell may free everything when it is acknowledged."""
    state = ctx.state
    if state.life.closing and not state.life.closed and not state.outbox.held:
        state.life.closed = True
        ctx.effects.append(Close(state.life.reason))
