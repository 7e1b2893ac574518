"""What happens when a client does not read: the session's own policy, in one step. SANS-I/O.

error -> purge the response's audio -> failed `response.done` -> close (default), or go on without the response.
The error and `response.done` may use the reserve, the terminal event has its slot; if even the reserve is
full the session closes under either policy.
"""

from __future__ import annotations

from duologue.protocol.duplex import RealtimeProtocolError
from duologue.session.core import closing, playback, responses, stages, tools
from duologue.session.core.context import SessionContext

CODE = "output_backpressure"


def settle(ctx: SessionContext) -> None:
    """Carry out the policy for an overflow of this step."""
    state = ctx.state
    before = state.outbox.n
    ctx.error(RealtimeProtocolError(CODE, "the client does not read its events", retryable=False))
    lost_error = state.outbox.n == before
    response = ctx.response
    if response is not None:
        stages.advance_epoch(ctx)
        playback.purge(ctx, response.id)
        before = state.outbox.n
        responses.close_response(ctx, response, "failed", CODE)
        lost_error = lost_error or state.outbox.n == before
        entry = state.item_of(f"item_{response.id}")
        if entry is not None:
            state.history.remove(entry)
        state.ledgers.pop(response.id, None)
        response.calls = []
        tools.make_stale(ctx)
    ctx.overflow = False
    closes = state.config.overflow_policy == "close" or lost_error or response is None
    overflows = ctx.observed.overflows
    policy = "close" if closes else "fail_response"
    overflows[policy] = overflows.get(policy, 0) + 1
    if closes:
        closing.close(ctx, CODE, close_code=1013)
    else:
        stages.pump(ctx)
