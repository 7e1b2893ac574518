"""After a fault of our own: back to the last good state, without taking back anything that was told. SANS-I/O.

Numbers only grow, so they are carried over from the broken state; so are events that were handed over, sound,
and what was streamed of the open response since. What the failed step had emitted is discarded.
"""

from __future__ import annotations

import traceback

import msgspec

from duologue.protocol.duplex import RealtimeProtocolError
from duologue.session.core import closing, failures, stages
from duologue.session.core.checkpoints import Checkpoints
from duologue.session.core.context import SessionContext
from duologue.session.core.engine_session import DuplexEngineSession
from duologue.session.core.ledger import PlaybackLedger

PERIOD_S = 60.0


def recover(broken: SessionContext, checkpoints: Checkpoints, mark: int) -> SessionContext:
    """A context that can go on. `mark` is the last event before the failed step."""
    state = msgspec.msgpack.decode(checkpoints.good, type=DuplexEngineSession)
    _carry_over(broken.state, state, mark)
    kind: type[msgspec.Struct] = broken.plugin.state_type
    model = msgspec.msgpack.decode(state.plugin_state, type=kind)
    ctx = SessionContext(state, broken.plugin, model)
    ctx.now, ctx.observed = state.now, broken.observed
    state.life.faults = [at for at in state.life.faults if ctx.now - at < PERIOD_S] + [ctx.now]
    ctx.error(RealtimeProtocolError("internal_error", "the session met a fault of the server"))
    if state.response is not None:
        failures.end_failed(ctx, "internal_error")
    else:
        stages.advance_epoch(ctx)
    if len(state.life.faults) > 1:
        closing.close(ctx, "internal_error", close_code=1011)
    return ctx


def place(fault: Exception) -> str:
    """The kind of a fault and the lines that led to it. Its message is left out: it may quote the session."""
    return f"{type(fault).__name__}\n{''.join(traceback.format_tb(fault.__traceback__))}"


def _carry_over(old: DuplexEngineSession, new: DuplexEngineSession, mark: int) -> None:
    for name in ("now", "owner", "epoch", "binding", "ready", "was_ready", "ids", "events", "next_unit"):
        setattr(new, name, getattr(old, name))
    for name in ("applied", "ahead", "saving", "covered", "stale", "life", "aborting", "rebuild"):
        setattr(new, name, getattr(old, name))
    _carry_outbox(old, new, mark)
    new.sound = old.sound
    flights = new.sound.flights.values()
    new.sound.flight_bytes = sum(len(flight.pcm) for flight in flights)
    new.sound.in_window = sum(flight.is_input for flight in flights)
    for name in ("queue", "queue_bytes", "offload", "tickets", "waiting", "ears_carry", "clock_ms"):
        setattr(new.intake, name, getattr(old.intake, name))
    new.intake.queue_bytes = sum(queued.cost for queued in new.intake.queue)
    if new.response is not None and old.response is not None and old.response.id == new.response.id:
        new.response.text, new.response.spoke = old.response.text, old.response.spoke
        new.response.has_audio = old.response.has_audio
        new.response.has_text_part = old.response.has_text_part
        new.ledgers[new.response.id] = old.ledgers.get(new.response.id, PlaybackLedger(new.response.id))
    for response_id, ledger in new.ledgers.items():
        known = old.ledgers.get(response_id)
        if known is not None and known.complete == ledger.complete:
            new.ledgers[response_id] = known


def _carry_outbox(old: DuplexEngineSession, new: DuplexEngineSession, mark: int) -> None:
    outbox = old.outbox
    outbox.sent = [entry for entry in outbox.sent if entry.n <= mark]
    outbox.held = [entry for entry in outbox.held if entry.n <= mark]
    outbox.size_bytes = sum(len(entry.body) for entry in (*outbox.sent, *outbox.held))
    new.outbox = outbox
