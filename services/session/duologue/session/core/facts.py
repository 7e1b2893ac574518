"""Facts, each handed to what it concerns. SANS-I/O.

Rule 1. What a stage says means something only under the fence in force: decided here, once, by equality.
Rule 2. Acknowledgements and durability are never fenced: what was delivered was delivered.
Rule 3. A closing session takes no more from its client, its stages or whoever computes for it.
"""

from __future__ import annotations

from typing import assert_never

from duologue.fence import DeliveryId, StageFence
from duologue.session.core import (
    adoption,
    closing,
    deadlines,
    failures,
    intake,
    listening,
    outputs,
    rebuild,
    silence,
    stages,
)
from duologue.session.core.checkpoints import Checkpoints
from duologue.session.core.commands import (
    Adopted,
    Attached,
    CheckpointWanted,
    CloseRequested,
    Covered,
    Delivered,
    Detached,
    Detected,
    FromClient,
    InputRecalled,
    InputRefused,
    Offloaded,
    RebindWanted,
    SessionCommand,
    StageFailed,
    StageOutput,
    StagesLost,
    StagesReady,
    Tick,
    TurnJudged,
    UnitsAborted,
)
from duologue.session.core.context import SessionContext
from duologue.session.core.effects import Deliver


def take(ctx: SessionContext, command: SessionCommand, checkpoints: Checkpoints) -> None:
    """Have one fact applied, if it means anything any more."""
    state = ctx.state
    match command:
        case FromClient():
            if state.life.closing:
                ctx.stale("command")
            else:
                intake.from_client(ctx, command)
        case StageOutput():
            if rebuild.is_replay(command.unit):
                rebuild.stage_output(ctx, command)
            elif _current(ctx, command.fence, "output"):
                state.life.active_at = ctx.now if state.life.detached_at < 0 else state.life.active_at
                outputs.stage_output(ctx, command)
            elif (state.aborting.units or state.sound.voided) and _bound(ctx, command.fence, "output"):
                stages.consumed_after_all(ctx, command.unit)
        case Delivered():
            _delivered(ctx, command.through)
        case Covered():
            _covered(ctx, command.number)
        case Tick():
            deadlines.tick(ctx)
        case RebindWanted():
            if state.ready and not state.life.closing:
                state.rebuild.due = state.rebuild.due or command.reason
        case CheckpointWanted():
            checkpoints.want(ctx)
        case InputRefused():
            if not state.life.closing:
                intake.refused(ctx, command)
        case Offloaded():
            if not state.life.closing:
                intake.offloaded(ctx, command)
        case Detected():
            if not state.life.closing:
                intake.detected(ctx, command)
        case TurnJudged():
            if not state.life.closing:
                listening.judged(ctx, command)
        case UnitsAborted():
            if _bound(ctx, command.fence, "aborted"):
                stages.aborted(ctx, command)
        case StageFailed():
            if rebuild.is_replay(command.unit):
                rebuild.unit_failed(ctx, command)
            elif _current(ctx, command.fence, "failure"):
                failures.unit_failed(ctx, command)
        case StagesReady():
            if _bound(ctx, command.fence, "ready") and not state.ready and not rebuild.begin(ctx, command.fence):
                stages.bound(ctx, command.fence)
                silence.expect(ctx)
        case InputRecalled():
            rebuild.recalled(ctx, command)
        case StagesLost():
            if _bound(ctx, command.fence, "lost"):
                failures.lost(ctx, command)
        case Attached():
            _attached(ctx, command)
        case Detached():
            _detached(ctx, command)
        case CloseRequested():
            closing.close(ctx, command.reason, close_code=command.close_code)
        case Adopted():
            adoption.adopt(ctx, command, checkpoints)
        case _:
            assert_never(command)


def _current(ctx: SessionContext, fence: StageFence, kind: str) -> bool:
    """The gate: what a stage says means something only under the fence in force."""
    state = ctx.state
    if (
        fence.epoch == state.epoch
        and fence.binding == state.binding
        and fence.owner == state.owner
        and not state.life.closing
    ):
        return True
    ctx.stale(kind)
    return False


def _bound(ctx: SessionContext, fence: StageFence, kind: str) -> bool:
    """The same without the epoch: true of a binding whatever was cancelled since."""
    state = ctx.state
    if fence.binding == state.binding and fence.owner == state.owner and not state.life.closing:
        return True
    ctx.stale(kind)
    return False


def _delivered(ctx: SessionContext, through: DeliveryId) -> None:
    state = ctx.state
    of = 0 if through.owner == state.owner else through.owner
    if not of:
        state.echoes.gap = False
    for entry in state.outbox.acknowledge(through.n, of):
        if entry.media_of:
            ledger = state.ledgers.get(entry.media_of)
            if ledger is not None:
                ledger.sent(entry.through_ms, ctx.now)
    intake.resume(ctx)


def _covered(ctx: SessionContext, number: int) -> None:
    state = ctx.state
    if state.outbox.outstanding and number >= state.outbox.outstanding:
        state.covered = state.saving
    ctx.effects.extend(state.outbox.confirm(number))
    intake.resume(ctx)


def _attached(ctx: SessionContext, command: Attached) -> None:
    life = ctx.state.life
    if command.generation < life.generation:
        ctx.stale("attachment")
        return
    life.generation = command.generation
    life.detached_at = -1.0
    life.active_at = ctx.now
    ctx.state.outbox.dirty = True
    ctx.effects.extend(unacknowledged(ctx))
    intake.release(ctx)


def _detached(ctx: SessionContext, command: Detached) -> None:
    life = ctx.state.life
    if command.generation < life.generation:
        ctx.stale("attachment")
        return
    life.detached_at = ctx.now
    ctx.state.outbox.dirty = True
    ctx.effects.extend(unacknowledged(ctx))
    if command.clean and not ctx.duplex:
        closing.close(ctx, "client_close")


def unacknowledged(ctx: SessionContext) -> list[Deliver]:
    """What the egress has to be given again: it drops what the journal holds."""
    return [entry.deliver() for entry in ctx.state.outbox.sent]
