"""The ordered input: commands that must keep their order wait here for a conversion; the others do not. SANS-I/O.

Rule 1. Append, commit, clear, item commands, `response.create` and every update form one queue. It waits only
        while a long payload is converted elsewhere, while the speech detector looks at an append, and while
        more than half of what the output may hold is not delivered (appends of an auto session go on: sound is
        live, and what the model says is not an answer to one command).
Rule 2. Cancel, barge-in, close, acknowledgement and heartbeat never wait for it; `input.cancel` and `barge_in`
        drop from it the input that was sent before them.
Rule 3. A command is applied once: numbers at or below what was applied are ignored.
"""

from __future__ import annotations

import msgspec

from duologue.fence import CommandNo
from duologue.protocol.duplex import (
    AckPlayback,
    AppendAudio,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearOutput,
    CreateItem,
    DuplexCommand,
    RealtimeProtocolError,
    SessionClose,
    SessionEventAck,
    SessionHeartbeat,
    SessionResume,
    TurnSignal,
)
from duologue.session.core import adoption, appends, conversions, input_queue, items, judging
from duologue.session.core.carry_out import guarded
from duologue.session.core.commands import Detected, FromClient, InputRefused, Offloaded
from duologue.session.core.context import SessionContext
from duologue.session.core.effects import Offload
from duologue.session.core.engine_session import Applied, Queued

_PREEMPTS = (
    CancelResponse,
    CancelInput,
    BargeIn,
    ClearOutput,
    SessionClose,
    AckPlayback,
    SessionHeartbeat,
    SessionEventAck,
    SessionResume,
    TurnSignal,
)


def from_client(ctx: SessionContext, fact: FromClient) -> None:
    """Take one command: apply it now, or queue it."""
    state = ctx.state
    no, queue = fact.no, state.intake.queue
    if no <= state.applied.no or (queue and input_queue.known(ctx, no)):
        ctx.stale("command")
        return
    if state.intake.again and adoption.applied_before(ctx, fact):
        ctx.stale("command")
        return
    state.life.active_at = ctx.now
    state.outbox.dirty = True
    command = fact.command
    if (queue or _must_wait(ctx, no, command)) and not isinstance(command, _PREEMPTS):
        input_queue.put(ctx, Queued(no, command, input_queue.cost(ctx, command)))
        _drain(ctx)  # after a fault of ours nothing is under way that would
    elif queue:
        state.ahead.append(Applied(no, command.event_id))
        guarded(ctx, command)
        _drain(ctx)
    else:
        before = state.applied
        state.applied = Applied(no, command.event_id or before.event_id, before.audio_end_ms)
        if not _begin(ctx, no, command):
            state.applied = before
    if not state.intake.queue:
        input_queue.catch_up(ctx)


def _must_wait(ctx: SessionContext, no: CommandNo | None, command: DuplexCommand) -> bool:
    """There is hardly room for what the command would tell; what is delivered makes some."""
    if ctx.auto and isinstance(command, AppendAudio):
        return False
    state = ctx.state
    return state.outbox.crowded(ctx.limits) and (no is None or no > state.intake.released)


def resume(ctx: SessionContext) -> None:
    """There is room in the output again, perhaps."""
    if ctx.state.intake.queue and not ctx.state.life.closing:
        _drain(ctx)
        if not ctx.state.intake.queue:
            input_queue.catch_up(ctx)


def release(ctx: SessionContext) -> None:
    """Nothing is delivered until an attachment is served, and it waits for what was sent before it."""
    intake = ctx.state.intake
    numbers = [queued.no for queued in intake.queue if queued.no is not None]
    if numbers:
        intake.released = max(numbers)
        resume(ctx)


def refused(ctx: SessionContext, fact: InputRefused) -> None:
    """Tell what the manager turned away: sound in the order of the input, one commit too many at once."""
    state, numbered = ctx.state, fact.no != CommandNo()
    if numbered and (fact.no <= state.applied.no or (state.intake.queue and input_queue.known(ctx, fact.no))):
        ctx.stale("command")
        return
    state.outbox.dirty = True
    if state.intake.queue and numbered and not fact.param:
        state.ahead.append(Applied(fact.no, fact.event_id))
        input_queue.tell_refusal(ctx, fact)
        return
    if state.intake.queue:
        state.intake.queue.append(Queued(fact.no if numbered else None, None, refusal=fact))
        return
    input_queue.tell_refusal(ctx, fact)
    if numbered:
        state.applied = Applied(fact.no, fact.event_id or state.applied.event_id, state.applied.audio_end_ms)


def _begin(ctx: SessionContext, no: CommandNo | None, command: DuplexCommand, queued: Queued | None = None) -> bool:
    """Carry a command out, or send its sound to be converted or judged and wait; true when it is done."""
    try:
        work = conversions.long_work(ctx, command) if queued is None or queued.pcm is None else None
        if work is None and ctx.rules is not None and isinstance(command, AppendAudio):
            return judging.ask(ctx, no, command, queued)
    except RealtimeProtocolError as error:
        ctx.error(error, command.event_id)
        return True
    if work is None:
        guarded(ctx, command)
        return True
    intake = ctx.state.intake
    intake.tickets += 1
    intake.offload = intake.tickets
    if not intake.queue:
        input_queue.put_first(ctx, no, command)
    ctx.effects.append(Offload(intake.offload, "convert", msgspec.msgpack.encode(work)))
    return False


def detected(ctx: SessionContext, fact: Detected) -> None:
    """The speech detector has looked at the appends at the head of the queue: it goes on."""
    if judging.answered(ctx, fact):
        _drain(ctx)
        if not ctx.state.intake.queue:
            input_queue.catch_up(ctx)


def offloaded(ctx: SessionContext, fact: Offloaded) -> None:
    """A conversion came back: its command is carried out, and the queue goes on."""
    intake = ctx.state.intake
    if fact.ticket != intake.offload or not intake.queue:
        ctx.stale("offload")
        return
    intake.offload = 0
    head = intake.queue[0]
    if ctx.rules is not None and isinstance(head.command, AppendAudio) and not fact.error:
        done = conversions.result_of(fact)
        head.pcm, intake.ears_carry = b"".join(done.sounds), ctx.ears.export()
        ctx.ears.take_up(done.carry)
    else:
        _converted(ctx, fact)
    _drain(ctx)
    if not intake.queue:
        input_queue.catch_up(ctx)


def _converted(ctx: SessionContext, fact: Offloaded) -> None:
    """Carry out the command at the head of the queue with its converted sound."""
    queued = input_queue.pop(ctx)
    command = queued.command
    try:
        done = conversions.result_of(fact)
        if isinstance(command, AppendAudio):
            ctx.ears.take_up(done.carry)
            source = appends.source_format(ctx, command.format, command.sample_rate_hz)
            appends.take(ctx, command, source, b"".join(done.sounds))
        elif isinstance(command, CreateItem):
            items.create(ctx, command, b"".join(done.sounds))
    except RealtimeProtocolError as error:
        ctx.error(error, None if command is None else command.event_id)


def _drain(ctx: SessionContext) -> None:
    """Carry out what waited, up to the next one that has to be converted elsewhere."""
    intake = ctx.state.intake
    while intake.queue and not intake.offload:
        head = intake.queue[0]
        if head.refusal is not None:
            input_queue.tell_refusal(ctx, head.refusal)
            input_queue.pop(ctx)
        elif head.command is not None:
            if head.pcm is None and _must_wait(ctx, head.no, head.command):
                break
            cost, head.cost = head.cost, 0
            intake.queue_bytes -= cost
            if _begin(ctx, head.no, head.command, head):
                if intake.queue and intake.queue[0] is head:
                    input_queue.pop(ctx)
            else:
                head.cost = cost
                intake.queue_bytes += cost
