"""A lost context is given to new stages before they get anything live. SANS-I/O.

    stages open -> what was heard is recalled -> the plugin plans -> replays go through -> the binding is ready

Rule 1. Until it is over the binding is not ready, so live input waits as it does while stages open: nothing that a
        client does needs to know of it. Replays go under the fence that the stages were opened with, whatever epoch
        the session has moved to meanwhile; the abort that they have not been told of follows the last one.
Rule 2. Nothing of a replay is told to anybody: between stages it is relayed, what it makes for the session is void.
Rule 3. Live sound may grow by `max_rebuild_queue_s` meanwhile, then the rebuild is cut short: a session that answers
        late is worse than one that has forgotten. What the model lost then is told, once (`context_lost`).
Rule 4. Replays that are under way at two deaths end the session as any unit does (`poison_input`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from duologue.fence import StageFence
from duologue.model.plugin import Rebuild, RecordedUnit
from duologue.protocol.duplex import RealtimeProtocolError
from duologue.session.core import history, silence, stages
from duologue.session.core.commands import InputRecalled, StageFailed, StageOutput
from duologue.session.core.context import SessionContext
from duologue.session.core.effects import RecallInput, Submit

LAST_REPLAY: Final = -2
"""Replays are numbered from here downwards: below every unit, and below `NO_UNIT`."""
WINDOW: Final = 8
"""Replays in the pipeline at once: enough to fill it, few enough to be outrun when the rebuild is cut short."""


def is_replay(unit: int) -> bool:
    return unit <= LAST_REPLAY


def begin(ctx: SessionContext, opened: StageFence) -> bool:
    """The stages are open. False: there is nothing to rebuild, and they are ready."""
    state = ctx.state
    rebuild = state.rebuild
    if rebuild.opened is not None:
        return True
    if not rebuild.reason:
        return False
    rebuild.opened, rebuild.began, rebuild.units = opened, ctx.now, 0
    rebuild.queued_bytes = len(state.sound.feed.pcm)
    rebuild.ticket += 1
    if ctx.rebuilds == "input":
        # What is under way is tried again after the replays, though by now somebody may have heard it: a checkpoint
        # that an heir starts from is older than the record.
        ctx.effects.append(RecallInput(rebuild.ticket, min(state.sound.flights, default=state.next_unit)))
    else:
        _plan(ctx, "history", ())
    return True


def recalled(ctx: SessionContext, fact: InputRecalled) -> None:
    """What the store has of the input."""
    rebuild = ctx.state.rebuild
    if rebuild.opened is None or fact.ticket != rebuild.ticket or ctx.state.life.closing:
        ctx.stale("recall")
    elif fact.error:
        finish(ctx, fact.error)
    else:
        _plan(ctx, "input", fact.units)


def _plan(ctx: SessionContext, kind: Literal["input", "history"], recorded: Sequence[RecordedUnit]) -> None:
    state = ctx.state
    known = Rebuild(
        kind=kind,
        reason=state.rebuild.reason,
        recorded=tuple(recorded),
        items=history.conversation(ctx),
        config=state.config,
        turn_id=state.turn_id,
        epoch=state.epoch,
    )
    state.sound.replays = list(ctx.plugin.plan_rebuild(ctx.model, known))
    if state.sound.replays:
        _pump(ctx)
    else:
        finish(ctx, "empty")


def _pump(ctx: SessionContext) -> None:
    state = ctx.state
    rebuild, sound = state.rebuild, state.sound
    assert rebuild.opened is not None
    while sound.replays and len(sound.replaying) < min(WINDOW, ctx.window):
        plan = sound.replays.pop(0)
        rebuild.last -= 1
        sound.replaying[rebuild.last] = 1
        ctx.effects.append(
            Submit(rebuild.opened, plan.stage, rebuild.last, state.turn_id, plan.head, tuple(plan.frames), replay=True)
        )


def stage_output(ctx: SessionContext, out: StageOutput) -> None:
    """A stage is through with a replay, or has something of it for the next one."""
    rebuild, replaying = ctx.state.rebuild, ctx.state.sound.replaying
    if out.fence != rebuild.opened or out.unit not in replaying or ctx.state.life.closing:
        ctx.stale("replay")
        return
    if out.to_stage >= 0:
        replaying[out.unit] += 1
        ctx.effects.append(Submit(out.fence, out.to_stage, out.unit, out.turn_id, out.head, out.frames, replay=True))
    if not out.last:
        return
    replaying[out.unit] -= 1
    if not replaying[out.unit]:
        del replaying[out.unit]
        rebuild.units += 1
        _pump(ctx)
        if not replaying:
            finish(ctx, "done")


def unit_failed(ctx: SessionContext, fact: StageFailed) -> None:
    """The model cannot take a replay: it goes on with what it has of its context."""
    state = ctx.state
    if fact.fence != state.rebuild.opened or fact.unit not in state.sound.replaying or state.life.closing:
        ctx.stale("replay")
    else:
        finish(ctx, "failed")


def finish(ctx: SessionContext, outcome: str) -> None:
    """It is over: `done`, `empty` (there was nothing), or why not all of it was given."""
    state = ctx.state
    rebuild = state.rebuild
    opened = rebuild.opened
    assert opened is not None
    ctx.observed.rebuilt(ctx.rebuilds, outcome, ctx.now - rebuild.began, rebuild.units)
    rebuild.opened, rebuild.reason, rebuild.deaths = None, "", 0
    state.sound.replays, state.sound.replaying = [], {}
    if outcome not in ("done", "empty"):
        ctx.error(RealtimeProtocolError("context_lost", f"the model goes on without all that it had heard ({outcome})"))
    stages.bound(ctx, opened)
    silence.expect(ctx)


def settle(ctx: SessionContext) -> None:
    """At the end of a step: cut short what takes too long; bind anew if that is due and nothing is being said."""
    state = ctx.state
    rebuild = state.rebuild
    if rebuild.opened is not None:
        allowed = ctx.limits.max_rebuild_queue_s * ctx.traits.input_rate_hz * 4
        if len(state.sound.feed.pcm) - rebuild.queued_bytes > allowed and not state.life.closing:
            finish(ctx, "cut_short")
    elif rebuild.due and state.ready and not state.aborting.units and state.response is None and not state.life.closing:
        stages.unbind(ctx, rebuild.due, death=False)
        stages.open_stages(ctx)
