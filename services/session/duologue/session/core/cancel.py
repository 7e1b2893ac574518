"""Cancel and barge-in: one atomic step, whatever asked for it. SANS-I/O.

In one `handle`: the epoch advances, units under way are void, un-acknowledged audio leaves the output buffer,
`Abort` and `Invalidate` go out, the cancelled terminal set is emitted.
"""

from __future__ import annotations

from duologue.protocol.duplex import (
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearOutput,
    InputCleared,
    OutputCleared,
    RealtimeProtocolError,
)
from duologue.session.core import input_state, playback, responses, stages, tools, turns
from duologue.session.core.context import SessionContext

OWN_WISH = ("client_cancelled", "output_audio_buffer_clear")
"""Nobody spoke over the answer: the client's program stopped it."""


def interrupt(ctx: SessionContext, reason: str, *, keeps_input: bool = True) -> None:
    """End the open response as cancelled, or stop the speaker of one that is finished and still played. The
    input stays, what no stage has consumed included, unless it was cancelled too."""
    response = ctx.response
    playing = ctx.playing()
    if reason not in OWN_WISH and (response is not None or playing is not None):
        ctx.state.totals.interruptions += 1
    if response is not None:
        ledger = ctx.ledger(response.id)
        heard_ms = ledger.committed_ms if ctx.duplex or ledger.acked else ledger.elapsed_ms(ctx.now)
        playback.tell_heard(ctx, ledger, heard_ms)
    stages.advance_epoch(ctx, keeps_input=keeps_input)
    tools.make_stale(ctx)
    if response is not None:
        playback.purge(ctx, response.id)
        responses.close_response(ctx, response, "cancelled", reason)
        tools.flush(ctx, response)
    elif playing is not None:
        playback.stop_playing(ctx, playing)
    ctx.state.turn_state = "barge_in" if reason != "client_cancelled" else "idle"
    stages.pump(ctx)


def stop(ctx: SessionContext, command: CancelInput | BargeIn) -> None:
    """`input.cancel` and `barge_in`: input and output, and always an answer."""
    if isinstance(command, BargeIn) and not ctx.capabilities.supports_barge_in:
        raise RealtimeProtocolError("barge_in_unsupported", "this model cannot be interrupted")
    input_state.clear(ctx)
    ctx.emit(InputCleared(event_id=ctx.event_id()))
    interrupt(ctx, "barge_in", keeps_input=False)
    ctx.state.turn_state = "idle"


def cancel_response(ctx: SessionContext, command: CancelResponse) -> None:
    """`response.cancel`: the open response, and with it a turn that waits to be answered."""
    response = ctx.response
    intake = ctx.state.intake
    if response is None and command.response_id is None and intake.deferred:
        turns.drop_deferred(ctx)
        return
    if response is None or command.response_id not in (None, response.id):
        raise RealtimeProtocolError("response_not_active", "there is no such active response", param="response_id")
    turns.drop_deferred(ctx)
    interrupt(ctx, "client_cancelled")


def clear_output(ctx: SessionContext, command: ClearOutput) -> None:
    """`output_audio_buffer.clear`: what is being made and what is being played; a waiting turn goes on."""
    state = ctx.state
    response, playing = ctx.response, ctx.playing()
    named = command.response_id
    if response is not None and named in (None, response.id):
        ctx.emit(OutputCleared(event_id=ctx.event_id(), response_id=response.id))
        interrupt(ctx, "output_audio_buffer_clear")
    elif response is None and playing is not None and named in (None, playing.response_id):
        stages.advance_epoch(ctx)
        playback.stop_playing(ctx, playing)
        stages.pump(ctx)
    else:
        known = named if named in state.ledgers else None
        ctx.emit(OutputCleared(event_id=ctx.event_id(), response_id=known))
    turns.promote(ctx)
