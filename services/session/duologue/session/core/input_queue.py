"""The queue of commands that wait for their turn, and the numbers of those that are applied. SANS-I/O.

Rule 1. What waits is counted against the input limit; what there is no room for waits as its refusal.
Rule 2. A command that went ahead of the queue counts as applied once all before it are.
"""

from __future__ import annotations

from duologue.fence import CommandNo
from duologue.protocol.duplex import AppendAudio, ClearInput, Commit, CreateItem, DuplexCommand, RealtimeProtocolError
from duologue.session.core import appends, input_state, pictures
from duologue.session.core.commands import InputRefused
from duologue.session.core.context import SessionContext
from duologue.session.core.engine_session import Applied, Queued

_INPUT = (AppendAudio, Commit, ClearInput)


def known(ctx: SessionContext, no: CommandNo) -> bool:
    """While something waits: the number is in the queue, or was carried out before its turn."""
    state = ctx.state
    applied = any(no == one.no for one in state.ahead)
    newest = next((queued.no for queued in reversed(state.intake.queue) if queued.no is not None), None)
    return applied or (newest is not None and no <= newest)


def put(ctx: SessionContext, queued: Queued) -> None:
    """Behind what waits; what there is no room for is refused when its turn comes."""
    intake = ctx.state.intake
    if input_state.input_bytes(ctx) + queued.cost > ctx.limits.max_pending_input_bytes:
        full = appends.no_room(ctx, queued.cost)
        after, event_id = full.retry_after_ms or 0, None if queued.command is None else queued.command.event_id
        refusal = InputRefused(event_id, full.code, full.message, after, param=full.param, retryable=full.retryable)
        queued = Queued(queued.no, None, refusal=refusal)
    intake.queue.append(queued)
    intake.queue_bytes += queued.cost


def put_first(ctx: SessionContext, no: CommandNo | None, command: DuplexCommand) -> Queued:
    """A command that has begun and is not done: it waits at the head of an empty queue."""
    intake = ctx.state.intake
    queued = Queued(no, command, cost(ctx, command))
    intake.queue.append(queued)
    intake.queue_bytes += queued.cost
    return queued


def cost(ctx: SessionContext, command: DuplexCommand) -> int:
    """What a command counts while it waits, in bytes: its sound as the model takes it, and its pictures."""
    if isinstance(command, AppendAudio):
        source = appends.source_format(ctx, command.format, command.sample_rate_hz)
        return appends.model_bytes(ctx, len(command.audio), source) + command.video_bytes
    if isinstance(command, CreateItem):
        return sum(
            appends.model_bytes(ctx, len(part.audio), appends.source_format(ctx, part.format, part.sample_rate_hz))
            for part in command.audio
        ) + pictures.size(command.item)
    return 0


def pop(ctx: SessionContext) -> Queued:
    """The head of the queue, as applied from here on."""
    state = ctx.state
    queued = state.intake.queue.pop(0)
    state.intake.queue_bytes -= queued.cost
    state.outbox.dirty = True  # a checkpoint made while it waited does not contain it
    if queued.no is not None:
        told = queued.refusal or queued.command
        event_id = None if told is None else told.event_id
        state.applied = Applied(queued.no, event_id or state.applied.event_id, state.applied.audio_end_ms)
    return queued


def catch_up(ctx: SessionContext) -> None:
    """Nothing waits: what was applied before its turn is in order now."""
    state = ctx.state
    if state.ahead:
        for one in sorted(state.ahead, key=lambda one: one.no):
            if one.no > state.applied.no:
                state.applied = Applied(one.no, one.event_id or state.applied.event_id, state.applied.audio_end_ms)
        state.ahead = []
    applied, end_ms = state.applied, round(state.intake.clock_ms)
    if end_ms != applied.audio_end_ms:
        state.applied = Applied(applied.no, applied.event_id, end_ms)


def drop_input(ctx: SessionContext) -> None:
    """`input.cancel` and `barge_in` undo the input that was sent before them."""
    intake = ctx.state.intake
    if not intake.queue:
        return
    if isinstance(intake.queue[0].command, _INPUT):
        intake.offload, intake.waiting, intake.ears_carry = 0, None, b""
    kept: list[Queued] = []
    for queued in intake.queue:
        if not isinstance(queued.command, _INPUT):
            kept.append(queued)
            continue
        intake.queue_bytes -= queued.cost
        if queued.no is not None:
            ctx.state.ahead.append(Applied(queued.no, queued.command.event_id))
    intake.queue = kept


def tell_refusal(ctx: SessionContext, fact: InputRefused) -> None:
    """What was turned away, as the error that its sender is told."""
    after = fact.retry_after_ms if fact.retryable else None
    error = RealtimeProtocolError(
        fact.code, fact.message, param=fact.param, retryable=fact.retryable, retry_after_ms=after
    )
    ctx.error(error, fact.event_id)
