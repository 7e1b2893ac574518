"""Function calls of the model, their results, and calls that nobody answers. SANS-I/O.

    open -> answered
    open -> late    at the next committed user turn, or after the timeout: the item is `incomplete`
    open -> stale   when what it belonged to was cancelled
    given -> answered   the client wrote the call itself (a conversation restored): nobody waits for it

Rule 1. An unanswered call never holds anything; only its own late result is refused, by name.
Rule 2. Calls of one turn belong together: an answer that is asked for between their results is made of all of them.
"""

from __future__ import annotations

import msgspec

from duologue.model.outputs import ToolCall
from duologue.protocol.duplex import (
    ArgumentsDelta,
    ArgumentsDone,
    FunctionCallFallback,
    Item,
    OutputItemAdded,
    OutputItemDone,
    RealtimeProtocolError,
    Response,
    ResponseCreated,
    ResponseDone,
    StatusDetails,
    function_call_item,
)
from duologue.session.core import history
from duologue.session.core.context import UNSET, SessionContext
from duologue.session.core.echoes import call_key
from duologue.session.core.engine_session import HistoryItem, OpenResponse, ToolCallState

MAX_CALLS = 256
"""Calls whose fate is remembered; of older ones a late result is simply unknown."""


def called(ctx: SessionContext, call: ToolCall) -> None:
    """The model calls a function: a response of its own, beside the one that is being spoken. The OpenAI
    dialects know one response at a time: there it follows when the open one has ended."""
    if not call.name or not _is_object(call.arguments):
        told = {"type": "function_call.done", "session_id": ctx.state.session_id, "epoch": ctx.state.epoch}
        ctx.emit(FunctionCallFallback(event_id=ctx.event_id(), event={**told, "raw": call.raw or call.arguments}))
        return
    call_id = call.call_id or f"call_{ctx.hex32()}"
    if not ctx.duplex and ctx.response is not None:
        ctx.response.calls.append((call_id, call.name, call.arguments))
    else:
        _tell(ctx, call_id, call.name, call.arguments)


def _is_object(arguments: str) -> bool:
    """Clients read the arguments as JSON, and by name."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError):
        return False
    return True


def flush(ctx: SessionContext, response: OpenResponse) -> None:
    """The response is over: tell the calls that waited for it."""
    for call_id, name, arguments in response.calls:
        _tell(ctx, call_id, name, arguments)
    response.calls = []


def _tell(ctx: SessionContext, call_id: str, name: str, arguments: str) -> None:
    state = ctx.state
    if state.echoes.told and state.echoes.claim(call_key(name, arguments)):
        return  # made by an owner before us, and told: it must not run twice
    response_id, item_id = f"resp_{ctx.hex32()}", ctx.item_id()
    begun = function_call_item(item_id, call_id=call_id, name=name, arguments="", status="in_progress")
    item = function_call_item(item_id, call_id=call_id, name=name, arguments=arguments)
    entry = HistoryItem(begun)
    history.place(ctx, entry)
    state.calls.append(ToolCallState(call_id, item_id, ctx.now))
    del state.calls[:-MAX_CALLS]
    metadata = state.config.metadata
    modalities = state.config.modalities
    ctx.emit(
        ResponseCreated(
            event_id=ctx.event_id(),
            response=Response(id=response_id, modalities=modalities, metadata=metadata),
            response_id=response_id,
        )
    )
    announced = not ctx.overflow
    history.announce(ctx, begun)
    ctx.emit(OutputItemAdded(event_id=ctx.event_id(), response_id=response_id, item=begun))
    ctx.emit(
        ArgumentsDelta(
            event_id=ctx.event_id(),
            response_id=response_id,
            item_id=item_id,
            call_id=call_id,
            delta=arguments,
        ),
    )
    ctx.emit(
        ArgumentsDone(
            event_id=ctx.event_id(),
            response_id=response_id,
            item_id=item_id,
            call_id=call_id,
            name=name,
            arguments=arguments,
        )
    )
    ctx.emit(OutputItemDone(event_id=ctx.event_id(), response_id=response_id, item=item))
    entry.item = item
    history.finish(ctx, item)
    if not announced:
        return
    status, reason = ("failed", "output_backpressure") if ctx.overflow else ("completed", "stop")
    ctx.emit(
        ResponseDone(
            event_id=ctx.event_id(),
            response=Response(
                id=response_id,
                status=status,
                status_details=StatusDetails.of(status, reason),
                output=(item,),
                modalities=modalities,
                metadata=metadata,
            ),
            response_id=response_id,
        ),
        reserved=True,
    )


def given(ctx: SessionContext, item: Item) -> None:
    """The client wrote a call into the conversation: it may give the result, too."""
    call_id, calls = "" if item.call_id is UNSET else item.call_id, ctx.state.calls
    if any(call.call_id == call_id and call.state == "open" for call in calls):
        return  # the model's own call is the one that a result answers
    calls.append(ToolCallState(call_id, item.id, ctx.now, "given"))
    del calls[:-MAX_CALLS]


def check_result(ctx: SessionContext, item: Item) -> ToolCallState:
    """The call that a result answers. Raises RealtimeProtocolError by name."""
    call_id = "" if item.call_id is UNSET else item.call_id
    call = next((call for call in reversed(ctx.state.calls) if call.call_id == call_id), None)
    if call is None:
        raise RealtimeProtocolError("invalid_function_call_output", f"no call {call_id[:64]!r}", param="item.call_id")
    if call.state == "answered":
        raise RealtimeProtocolError("invalid_function_call_output", "this call has been answered", param="item.output")
    if call.state not in ("open", "given"):
        raise RealtimeProtocolError(
            f"{call.state}_function_call_output", "this call is no longer waited for", param="item.call_id"
        )
    return call


def half_answered(ctx: SessionContext) -> bool:
    """Results were given that no answer was made of yet, and others of the same turn are still to come."""
    return ctx.state.intake.results > 0 and any(call.state == "open" for call in ctx.state.calls)


def settle_open(ctx: SessionContext, state: str) -> None:
    """Nobody waits for these calls any more."""
    for call in ctx.state.calls:
        if call.state == "open":
            _settle(ctx, call, state)


def make_stale(ctx: SessionContext) -> None:
    ctx.state.intake.results = 0
    settle_open(ctx, "stale")


def expire(ctx: SessionContext) -> None:
    for call in ctx.state.calls:
        if call.state == "open" and ctx.now >= call.opened_at + ctx.limits.tool_timeout_s:
            _settle(ctx, call, "late")


def next_expiry(ctx: SessionContext) -> float:
    """When the oldest open call is given up; infinity if none is open."""
    opened = (call.opened_at for call in ctx.state.calls if call.state == "open")
    return min(opened, default=float("inf")) + ctx.limits.tool_timeout_s


def _settle(ctx: SessionContext, call: ToolCallState, state: str) -> None:
    call.state = state
    entry = ctx.state.item_of(call.item_id)
    if entry is not None:
        entry.item = entry.item.with_status("incomplete")
