"""Checkpoints: when the state is made durable, and what of it. SANS-I/O.

Rule 1. At structural events, coalesced (one outstanding); else at most one each interval while anything changes.
Rule 2. A checkpoint holds what an heir cannot have from anybody else: input that was taken and not consumed (at most
        `MAX_SOUND_BYTES`), events that nobody acknowledged. No pictures, nothing that waits to be told in its time.
        A snapshot holds all.
Rule 3. The newest good state is kept in memory as bytes, for the day that a step fails.
"""

from __future__ import annotations

from typing import Final

import msgspec

from duologue.session.core import input_state
from duologue.session.core.context import SessionContext
from duologue.session.core.effects import Checkpoint
from duologue.session.core.engine_session import Flight, Sound

MAX_SOUND_BYTES: Final = 2 * 1024 * 1024
"""Half a minute at 16 kHz. A turn that is longer is lost with its shard."""


_encoder = msgspec.msgpack.Encoder()


class Checkpoints:
    """The last good state of one session."""

    def __init__(self) -> None:
        self.good = b""
        self.wanted = False
        """A gateway holds as many commands that no checkpoint covers as it may."""
        self.due = False
        """The next step ends with one, whatever it did."""
        self._structural = 0

    def save_if_due(self, ctx: SessionContext) -> None:
        """At the end of a step: ask for a checkpoint if one is due."""
        outbox = ctx.state.outbox
        if outbox.outstanding:
            if outbox.held and outbox.held[-1].n != self._structural:
                self.remember(ctx)
            return
        stale = outbox.dirty and ctx.now >= outbox.saved_at + ctx.limits.checkpoint_interval_s
        wanted = self.wanted and ctx.state.covered != ctx.state.applied
        if outbox.held or stale or wanted or self.due:
            self.due = False
            self._save(ctx)

    def want(self, ctx: SessionContext) -> None:
        """Somebody waits until everything taken is covered, what waits for its turn included."""
        state = ctx.state
        newest = state.saving if state.outbox.outstanding else state.covered
        self.wanted = newest != state.applied or bool(state.intake.queue)

    def _save(self, ctx: SessionContext) -> None:
        state = ctx.state
        outbox = state.outbox
        outbox.checkpoint += 1
        outbox.outstanding = outbox.checkpoint
        outbox.outstanding_through = outbox.n
        outbox.saved_at = ctx.now
        outbox.dirty, self.wanted = False, bool(state.intake.queue)
        state.saving = state.applied
        self.remember(ctx)
        ctx.effects.append(Checkpoint(outbox.checkpoint, self.good, state.applied.no, outbox.n))

    def last(self, ctx: SessionContext) -> Checkpoint:
        """What an heir goes on from, whatever else is under way."""
        outbox = ctx.state.outbox
        outbox.checkpoint += 1
        return Checkpoint(outbox.checkpoint, checkpoint_body(ctx), ctx.state.applied.no, outbox.n)

    def remember(self, ctx: SessionContext) -> None:
        self.good = checkpoint_body(ctx)
        outbox = ctx.state.outbox
        self._structural = outbox.held[-1].n if outbox.held else 0

    def snapshot(self, ctx: SessionContext) -> bytes:
        _carry(ctx)
        return _encoder.encode(ctx.state)


def _carry(ctx: SessionContext) -> None:
    """Write into the state what lives beside it."""
    state = ctx.state
    state.plugin_state = msgspec.Raw(_encoder.encode(ctx.model))
    state.sound.carry = ctx.ears.export()
    state.sound.voice_carry = ctx.voice.export() if state.response is not None else b""


def _kept_sound(ctx: SessionContext) -> Sound:
    state = ctx.state
    sound, carry = state.sound, state.intake.ears_carry or state.sound.carry
    held = input_state.sound_bytes(ctx)
    if not held or held > MAX_SOUND_BYTES:
        return Sound(carry=carry)
    return Sound(
        sound.feed,
        sound.buffer,
        sound.retained,
        sound.preroll,
        {number: _planned_anew(flight) for number, flight in sound.flights.items()},
        sound.flight_bytes,
        sound.in_window,
        carry,
        sees=sound.sees,
    )


def _planned_anew(flight: Flight) -> Flight:
    """Without what was sent of it: stages that are opened anew are sent what is planned then."""
    return msgspec.structs.replace(flight, head=b"", frames=()) if flight.is_input else flight


def checkpoint_body(ctx: SessionContext) -> bytes:
    """The state as rule 2 has it; commands that wait for the queue are not in it, so `applied` does not claim them."""
    _carry(ctx)
    state = ctx.state
    whole = state.sound, state.outbox, state.intake.queue, state.intake.queue_bytes, state.intake.offload
    waiting = state.intake.waiting, state.intake.ears_carry
    state.sound = _kept_sound(ctx)
    state.outbox = state.outbox.kept()
    state.intake.queue, state.intake.queue_bytes, state.intake.offload = [], 0, 0
    state.intake.waiting, state.intake.ears_carry = None, b""
    try:
        return _encoder.encode(state)
    finally:
        state.sound, state.outbox, state.intake.queue = whole[:3]
        state.intake.queue_bytes, state.intake.offload = whole[3:]
        state.intake.waiting, state.intake.ears_carry = waiting
