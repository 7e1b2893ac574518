"""The session's side of its stage workers: units out, relays between stages, units back. SANS-I/O.

Rule 1. What leaves carries the current `StageFence`; what comes back was compared with it once, at the door.
Rule 2. A unit is over when every stage that was given it has said `last`. Only units of input take a place
        in the window of `max_in_flight`; the rest of the input waits in `sound.feed`.
Rule 3. After an abort nothing is submitted until the workers have told which units they had consumed: a
        consumed unit is never submitted again, a dropped one goes back to the head of the input.
"""

from __future__ import annotations

from duologue.fence import StageFence
from duologue.model.plugin import AppendPlan, InputUnit, RecordedUnit
from duologue.session.core.commands import StageOutput, UnitsAborted
from duologue.session.core.context import SessionContext
from duologue.session.core.effects import Abort, OpenStages, RecordInput, Submit
from duologue.session.core.engine_session import Flight, PendingAbort, Segment, SoundBuffer

MAX_SILENCE_IN_FLIGHT = 4
MAX_VOIDED = 64
"""Units whose end the workers owe an account of; beyond it the oldest counts as not heard."""


def open_stages(ctx: SessionContext) -> None:
    """Ask for workers under the current binding."""
    state = ctx.state
    state.ready = False
    configs = ctx.plugin.stage_configs(state.config, ctx.model)
    ctx.effects.append(OpenStages(state.fence, tuple(configs)))


def bind_elsewhere(ctx: SessionContext) -> None:
    """Stages that are not open yet are to be opened by others. What waits for them goes on waiting."""
    ctx.state.binding += 1
    open_stages(ctx)


# -- out --------------------------------------------------------------------------------------------------


def pump(ctx: SessionContext) -> None:
    """Submit as much of the waiting input as the window takes."""
    state = ctx.state
    sound = state.sound
    if not state.ready or state.aborting.units or state.life.closing:
        return
    while len(sound.feed.pcm) >= ctx.unit_bytes and sound.in_window < ctx.window:
        _submit_next(ctx, sound.feed)


def _submit_next(ctx: SessionContext, feed: SoundBuffer, continuation: bool = False) -> None:
    pcm, told = cut(feed, ctx.unit_bytes, ctx.traits.input_rate_hz)
    submit_unit(
        ctx,
        pcm,
        start_ms=told.start_ms,
        is_speech=told.is_speech,
        force_listen=told.force_listen,
        final=told.final,
        video_frames=told.video_frames,
        continuation=continuation,
    )


def cut(feed: SoundBuffer, size: int, rate_hz: int) -> tuple[bytes, Segment]:
    """Take one unit off a buffer: its samples, and what the segments it spans say of it."""
    whole = size == len(feed.pcm)  # as mostly: an append is a unit
    pcm = bytes(feed.pcm if whole else feed.pcm[:size])
    del feed.pcm[:size]
    told = Segment(size, feed.segments[0].start_ms)
    while size:
        segment = feed.segments[0]
        take = min(size, segment.size)
        told.is_speech |= segment.is_speech
        told.force_listen |= segment.force_listen
        if segment.video_frames:
            told.video_frames += segment.video_frames
            segment.video_frames = ()
        segment.size -= take
        segment.start_ms += take / 4 / rate_hz * 1000
        size -= take
        if not segment.size:
            told.final |= segment.final
            feed.segments.pop(0)
    return pcm, told


def pad(feed: SoundBuffer, size: int) -> None:
    """Fill the last unit of a buffer with silence."""
    rest = -len(feed.pcm) % size
    if rest:
        feed.pcm += bytes(rest)
        feed.segments[-1].size += rest


def submit_unit(
    ctx: SessionContext,
    pcm: bytes,
    *,
    start_ms: float,
    is_speech: bool = False,
    force_listen: bool = False,
    final: bool = False,
    video_frames: tuple[bytes, ...] = (),
    continuation: bool = False,
) -> None:
    """Have the plugin plan one unit of input, and send it."""
    state = ctx.state
    flight = Flight(
        state.turn_id,
        b"",
        (),
        0,
        pcm,
        start_ms,
        is_speech,
        force_listen,
        final,
        video_frames,
        continuation,
    )
    _plan(ctx, flight)
    state.locked = True
    state.last_submit_at = ctx.now
    _launch(ctx, flight)


def _plan(ctx: SessionContext, flight: Flight) -> None:
    """What is submitted for a unit, as the model's state is now."""
    state = ctx.state
    unit = InputUnit(
        pcm=flight.pcm,
        turn_id=flight.turn_id,
        epoch=state.epoch,
        start_ms=round(flight.start_ms),
        auto=state.config.auto_response,
        final=flight.final,
        continuation=flight.continuation,
        force_listen=flight.force_listen,
        is_speech=flight.is_speech,
        response_open=ctx.busy(),
        video_frames=flight.video_frames,
    )
    plan = ctx.plugin.plan_unit(ctx.model, unit)
    flight.head, flight.frames, flight.stage = plan.head, plan.frames, plan.stage


def submit_plan(ctx: SessionContext, plan: AppendPlan) -> None:
    """Submit what the plugin made from the conversation, ahead of others' later units."""
    ctx.state.urgent = True
    _launch(ctx, Flight(ctx.state.turn_id, plan.head, plan.frames, plan.stage, is_input=False))
    ctx.state.last_submit_at = ctx.now


def _launch(ctx: SessionContext, flight: Flight) -> None:
    state = ctx.state
    number = state.next_unit
    state.next_unit += 1
    sound = state.sound
    sound.flights[number] = flight
    sound.flight_bytes += len(flight.pcm)
    sound.in_window += flight.is_input
    if state.ready:
        _send(ctx, number, flight)


def _send(ctx: SessionContext, number: int, flight: Flight) -> None:
    state = ctx.state
    flight.urgent, state.urgent = state.urgent or flight.urgent, False
    ctx.effects.append(
        Submit(
            state.fence,
            flight.stage,
            number,
            flight.turn_id,
            flight.head,
            flight.frames,
            flight.attempt,
            flight.urgent,
        )
    )


# -- back -------------------------------------------------------------------------------------------------


def relay(ctx: SessionContext, out: StageOutput) -> None:
    """Hand what one stage made to the next; the session never looks inside."""
    flight = ctx.state.sound.flights.get(out.unit)
    if flight is not None:
        flight.places += 1
        flight.relayed = True
    attempt, urgent = (0, False) if flight is None else (flight.attempt, flight.urgent)
    ctx.effects.append(Submit(out.fence, out.to_stage, out.unit, out.turn_id, out.head, out.frames, attempt, urgent))


def consumed(ctx: SessionContext, unit: int) -> None:
    """A stage has made something of this unit."""
    flight = ctx.state.sound.flights.get(unit)
    if flight is not None:
        flight.relayed = True


def landed(ctx: SessionContext, out: StageOutput) -> bool:
    """One stage is through with a unit. False: others are not."""
    flight = ctx.state.sound.flights.get(out.unit)
    if flight is None:
        return True
    flight.relayed = True
    flight.places -= 1
    if flight.places > 0:
        return False
    heard(ctx, out.unit)
    if flight.is_input and not flight.continuation:
        # The converter may hold back a few samples: half a unit is neither this one nor the next.
        ctx.observed.unit_landed(flight.start_ms + 1.5 * ctx.traits.unit_ms, ctx.now)
    return True


def forget(ctx: SessionContext, unit: int) -> Flight | None:
    """Take a unit out of the books."""
    sound = ctx.state.sound
    flight = sound.flights.pop(unit, None)
    if flight is not None:
        sound.flight_bytes -= len(flight.pcm)
        sound.in_window -= flight.is_input
    return flight


def heard(ctx: SessionContext, unit: int) -> None:
    """The same of a unit that the stages have consumed: it is a part of their context now."""
    _record(ctx, unit, forget(ctx, unit))


def _record(ctx: SessionContext, unit: int, flight: Flight | None) -> None:
    rebuild = ctx.state.rebuild
    if flight is not None and flight.is_input and ctx.rebuilds == "input" and unit > rebuild.recorded:
        rebuild.recorded = unit
        known = RecordedUnit(unit, flight.turn_id, flight.stage, flight.head, flight.frames)
        ctx.effects.append(RecordInput(known))


def real_input_waits(ctx: SessionContext) -> bool:
    """Input of the user is on its way, so no silence is needed."""
    sound = ctx.state.sound
    if len(sound.feed.pcm) >= ctx.unit_bytes:
        return True
    for flight in sound.flights.values():
        if flight.is_input and not flight.continuation:
            return True
    return False


# -- abort ------------------------------------------------------------------------------------------------


def advance_epoch(ctx: SessionContext, *, keeps_input: bool = True) -> None:
    """epoch + 1: everything under way is void. What no stage has consumed is taken back, unless the input itself
    was cancelled; a turn-based session of a model that answers from units drops the turn that was answered."""
    state = ctx.state
    state.epoch += 1
    ctx.observed.input_dropped()
    if state.ready:
        ctx.effects.append(Abort(state.fence))
    ctx.plugin.on_cancel(ctx.model, state.epoch)
    state.sound.drop_paced()
    pending = state.aborting
    if not keeps_input:
        pending.units, pending.dropped = [], []
    for number, flight in list(state.sound.flights.items()):
        if number in pending.units or number in pending.dropped:
            continue
        returns = keeps_input and hears_on(ctx) and flight.is_input and not flight.continuation
        if flight.relayed:
            heard(ctx, number)
        elif not returns:
            _void(ctx, number)
        elif state.ready:
            pending.units.append(number)
    pending.since = ctx.now
    if state.ready:
        _cancelled(ctx)
    if not hears_on(ctx):
        state.sound.feed.clear()
    if not keeps_input:
        state.intake.awaiting.clear()
    state.intake.answer_due = False


def _void(ctx: SessionContext, number: int) -> None:
    """A unit that does not return whatever the workers say of it; what they say tells whether it was heard."""
    flight = forget(ctx, number)
    voided = ctx.state.sound.voided
    if flight is not None and flight.is_input and ctx.rebuilds == "input" and ctx.state.ready:
        voided[number] = flight
        if len(voided) > MAX_VOIDED:
            del voided[next(iter(voided))]


def _cancelled(ctx: SessionContext) -> None:
    """The stages are told of a cancel: where that costs them what they heard, they are to be given it again."""
    if not ctx.traits.cancel_keeps_context and ctx.rebuilds != "none" and ctx.state.locked:
        ctx.state.rebuild.due = ctx.state.rebuild.due or "context_dropped"


def hears_on(ctx: SessionContext) -> bool:
    """The input does not belong to one answer: a model that plans still owes the words of turns whose answer was
    cancelled."""
    return ctx.auto or ctx.plans


def aborted(ctx: SessionContext, fact: UnitsAborted) -> None:
    """A worker's account of an abort. Not fenced by epoch: what it says of a unit stays true."""
    pending, voided = ctx.state.aborting, ctx.state.sound.voided
    if voided:
        for number in sorted(fact.consumed):
            _record(ctx, number, voided.pop(number, None))
        for number in fact.dropped:
            voided.pop(number, None)
    for number in fact.consumed:
        if number in pending.units:
            pending.units.remove(number)
            heard(ctx, number)
    for number in fact.dropped:
        if number in pending.units:
            pending.units.remove(number)
            pending.dropped.append(number)
    if not pending.units:
        settle_abort(ctx, dropped=False)


def consumed_after_all(ctx: SessionContext, unit: int) -> None:
    """An output of before the abort: void, but it tells that its unit was consumed."""
    pending, voided = ctx.state.aborting, ctx.state.sound.voided
    if unit in voided:
        _record(ctx, unit, voided.pop(unit))
    if unit in pending.units:
        pending.units.remove(unit)
        heard(ctx, unit)
        if not pending.units:
            settle_abort(ctx, dropped=False)


def settle_abort(ctx: SessionContext, *, dropped: bool) -> None:
    """Put back what was dropped, in order; what nobody accounted for counts as `dropped` says."""
    state = ctx.state
    pending = state.aborting
    back = sorted(pending.dropped + pending.units) if dropped else sorted(pending.dropped)
    for number in pending.units if not dropped else ():
        heard(ctx, number)
    pending.units, pending.dropped, pending.since = [], [], -1.0
    if back:
        head = SoundBuffer()
        for number in back:
            flight = forget(ctx, number)
            if flight is not None:
                segment = Segment(len(flight.pcm), flight.start_ms, flight.is_speech, flight.force_listen)
                segment.final, segment.video_frames = flight.final, flight.video_frames
                head.push(flight.pcm, segment)
        head.join(state.sound.feed)
        state.sound.feed = head
    pump(ctx)


# -- a new binding ----------------------------------------------------------------------------------------


def unbind(ctx: SessionContext, reason: str = "worker_lost", *, death: bool = True) -> None:
    """The workers are gone. Units that belong to no answer and were under way will be tried again, in order and
    under their numbers; a turn that was being answered is lost with its response. So are words that the workers
    owed of turns whose end they had consumed."""
    state = ctx.state
    # No unit of these is there before the stages are open, nor while their context is rebuilt. A shard that stood still
    # loses every worker one after the other, the new ones before they have answered: no unit did that.
    blames = death and state.ready and state.rebuild.opened is None
    _lose_context(ctx, reason, death)
    state.binding += 1
    state.ready = False
    state.aborting = PendingAbort()
    for number, flight in list(state.sound.flights.items()):
        if not hears_on(ctx) or not flight.is_input or flight.continuation:
            forget(ctx, number)
            continue
        flight.attempt += 1
        flight.deaths += blames
        flight.places, flight.relayed = 1, False
    awaiting, sound = state.intake.awaiting, state.sound
    ends = sum(flight.final for flight in sound.flights.values()) + sum(part.final for part in sound.feed.segments)
    del awaiting[: max(len(awaiting) - ends, 0)]


def _lose_context(ctx: SessionContext, reason: str, death: bool) -> None:
    """What the stages held is gone with them; the next ones are given it, where the pipeline says so."""
    rebuild, sound = ctx.state.rebuild, ctx.state.sound
    if rebuild.opened is not None:
        ctx.observed.rebuilt(ctx.rebuilds, "lost", ctx.now - rebuild.began, rebuild.units)
        rebuild.deaths += death and bool(sound.replaying)
    for number, flight in sound.voided.items():
        _record(ctx, number, flight)  # nobody will tell any more: more often than not they were
    sound.voided = {}
    if rebuild.opened is None and ctx.rebuilds != "none" and (ctx.state.locked or ctx.rebuilds == "history"):
        rebuild.reason = rebuild.reason or reason
    rebuild.opened, rebuild.due = None, ""
    sound.replays, sound.replaying = [], {}


def poisonous(ctx: SessionContext) -> bool:
    """A unit has been under way at too many deaths: it may be what kills the workers."""
    if ctx.state.rebuild.deaths >= ctx.limits.max_stage_deaths:
        return True
    return any(flight.deaths >= ctx.limits.max_stage_deaths for flight in ctx.state.sound.flights.values())


def bound(ctx: SessionContext, opened: StageFence) -> None:
    """The stages are open: submit what waits, units that are tried again first. An abort that came meanwhile
    is told them now: they know only the epoch that they were opened under."""
    state = ctx.state
    if opened.epoch < state.epoch:
        ctx.effects.append(Abort(state.fence))
        _cancelled(ctx)
    state.ready = state.was_ready = True
    for number, flight in state.sound.flights.items():
        if flight.is_input:
            _plan(ctx, flight)
        _send(ctx, number, flight)
    pump(ctx)
