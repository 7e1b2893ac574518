"""DuplexSessionMachine: one session as a machine. SANS-I/O: no clock, loop, socket, thread, randomness or log.

Rule 1. `handle` is the only door: synchronous, total, deterministic. It never raises for anything that a client,
        a worker or the store can do; time is an argument and recorded.
Rule 2. Whatever finishes later comes back as a command with the fence that it started under. Staleness is
        decided once, in `facts`: by equality for stage outputs, never for acknowledgements and durability.
Rule 3. An exception inside is our bug: the last good state is restored, the open response ends as failed, the
        client is told `internal_error`; the second one in a minute closes the session with its story.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from duologue.fence import CommandNo, StageFence
from duologue.model.outputs import Usage
from duologue.model.plugin import DuplexModelPlugin
from duologue.protocol.duplex import Commit, Dialect, DuplexCommand, RealtimeProtocolError
from duologue.session.core import (
    closing,
    config,
    deadlines,
    facts,
    history,
    input_cost,
    input_state,
    opening,
    overflow,
    rebuild,
)
from duologue.session.core.checkpoints import Checkpoints
from duologue.session.core.commands import SessionCommand
from duologue.session.core.context import SessionContext
from duologue.session.core.effects import Checkpoint, Close, CloseStages, Deliver, SessionEffect, TellFault
from duologue.session.core.engine_session import Totals
from duologue.session.core.limits import SessionLimits
from duologue.session.core.observations import Observations
from duologue.session.core.recovery import place, recover
from duologue.session.core.story import Story


class DuplexSessionMachine:
    """One session. Made by `open` or `restore`; afterwards only `handle` changes it."""

    def __init__(self, ctx: SessionContext) -> None:
        self._ctx = ctx
        self._checkpoints = Checkpoints()
        self._story = Story()

    @classmethod
    def open(
        cls,
        *,
        session_id: str,
        seed: bytes,
        owner: int,
        dialect: Dialect,
        model: str,
        plugin: DuplexModelPlugin[Any],
        limits: SessionLimits,
        request: dict[str, Any],
        update_event_id: str | None = None,
        announced: bool = False,
        opened_unix_s: float = 0.0,
        max_sessions: int = 1,
    ) -> tuple[Self, list[SessionEffect]]:
        """A new session at session time 0, and its first effects: open the stages, save, tell.

        `announced`: the client has its `session.created` already; either way the first event delivered is
        `session.updated`. Raises RealtimeProtocolError, which carries `update_event_id`.
        """
        try:
            ctx = opening.open_session(
                session_id=session_id,
                seed=seed,
                owner=owner,
                dialect=dialect,
                model=model,
                plugin=plugin,
                limits=limits,
                request=request,
                opened_unix_s=opened_unix_s,
                max_sessions=max_sessions,
            )
        except RealtimeProtocolError as error:
            error.event_id = error.event_id or update_event_id
            raise
        machine = cls(ctx)
        machine._settle()
        return machine, ctx.effects

    @classmethod
    def restore(
        cls, body: bytes, *, plugin: DuplexModelPlugin[Any], limits: SessionLimits | None = None, owner: int
    ) -> Self:
        """A session from a snapshot or a checkpoint. A new owner must say `Adopted` next.

        Raises ValueError (msgspec.ValidationError included) if the body cannot be read."""
        ctx = opening.restore_session(body, plugin=plugin, owner=owner)
        if limits is not None:
            ctx.state.limits = ctx.limits = limits
        machine = cls(ctx)
        machine._checkpoints.remember(ctx)
        return machine

    # -- the door -----------------------------------------------------------------------------------------

    def handle(self, command: SessionCommand, now: float) -> list[SessionEffect]:
        """Apply one fact; the effects are to be performed in order. Never raises."""
        ctx = self._ctx
        state = ctx.state
        if now > state.now:
            state.now = now
        ctx.now = state.now
        ctx.effects = effects = []
        mark = state.outbox.n
        try:
            facts.take(ctx, command, self._checkpoints)
            self._settle()
        except Exception as fault:  # our bug, whatever it is: rule 3
            effects = [TellFault(place(fault)), *self._recover(mark)]
        self._story.step(ctx.now, self._ctx.state, command, effects)
        return effects

    # -- the end of a step --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """What a step may have made due; hardly any has."""
        ctx = self._ctx
        state = ctx.state
        if state.rebuild.opened is not None or state.rebuild.due:
            rebuild.settle(ctx)
        if ctx.overflow:
            overflow.settle(ctx)
        self._checkpoints.save_if_due(ctx)
        if state.life.closing:
            closing.finish(ctx)

    def _recover(self, mark: int) -> list[SessionEffect]:
        """Restore the last good state and tell; a fault in here ends the session without another word."""
        broken = self._ctx
        try:
            self._ctx = ctx = recover(broken, self._checkpoints, mark)
            self._settle()
            _count(ctx.observed.faults, "closed" if ctx.state.life.closing else "restored")
            return ctx.effects
        except Exception:  # nothing can be trusted any more
            state = broken.state
            state.life.closing = state.life.closed = True
            _count(broken.observed.faults, "closed")
            return [CloseStages(state.fence), Close("internal_error")]

    # -- what the shell asks ------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Session time at which a `Tick` is due; None when nothing will be."""
        return deadlines.next_deadline(self._ctx)

    def snapshot(self) -> bytes:
        """The whole session, sound included."""
        return self._checkpoints.snapshot(self._ctx)

    def last_words(self) -> Checkpoint:
        """The checkpoint that the session is handed over with. Nothing may be handled after it."""
        return self._checkpoints.last(self._ctx)

    def session_object(self) -> bytes:
        """The session as `session.created` and `session.resumed` show it: JSON in the session's dialect."""
        return config.session_json(self._ctx)

    def items_for_gap(self) -> bytes:
        """The conversation in short: a JSON list of id, role, text."""
        return msgspec.json.encode(history.entries_for_gap(self._ctx))

    def unacknowledged(self) -> list[Deliver]:
        """What the egress has to be given again: it drops what the journal holds."""
        return facts.unacknowledged(self._ctx)

    @staticmethod
    def input_cost(command: DuplexCommand) -> int:
        """What a command counts against the input limit before it is looked at: its sound as float32 at 16 kHz."""
        return input_cost.input_cost(command)

    @property
    def pending_input_bytes(self) -> int:
        return input_state.input_bytes(self._ctx)

    @property
    def queued_commits(self) -> int:
        return sum(isinstance(queued.command, Commit) for queued in self._ctx.state.intake.queue)

    @property
    def input_waits(self) -> bool:
        """Commands wait in the ordered input for a conversion."""
        return bool(self._ctx.state.intake.queue)

    @property
    def responding(self) -> bool:
        return self._ctx.state.response is not None

    @property
    def made(self) -> int:
        """The number of the last event that was made."""
        return self._ctx.state.outbox.n

    @property
    def gap(self) -> bool:
        """What an owner before told is not all known; true until something of ours is delivered."""
        return self._ctx.state.echoes.gap

    @property
    def time(self) -> float:
        """Session time of the last fact."""
        return self._ctx.state.now

    @property
    def applied(self) -> CommandNo:
        return self._ctx.state.applied.no

    @property
    def covered(self) -> CommandNo:
        return self._ctx.state.covered.no

    @property
    def last_client_event_id(self) -> str | None:
        """As covered by a checkpoint, as is the next."""
        return self._ctx.state.covered.event_id

    @property
    def input_audio_end_ms(self) -> int:
        return self._ctx.state.covered.audio_end_ms

    @property
    def detached_since(self) -> float | None:
        at = self._ctx.state.life.detached_at
        return None if at < 0 else at

    @property
    def stale(self) -> dict[str, int]:
        """How much came too late to mean anything, by kind."""
        return self._ctx.state.stale

    @property
    def observed(self) -> Observations:
        """What it measures of itself, for the metrics."""
        return self._ctx.observed

    @property
    def totals(self) -> Totals:
        """What the session came to so far, over all its owners."""
        return msgspec.structs.replace(self._ctx.state.totals, input_ms=self._ctx.state.intake.clock_ms)

    @property
    def used(self) -> Usage | None:
        """What the model counted, over all owners; None: it counts nothing."""
        return self._ctx.state.used

    @property
    def closed(self) -> bool:
        return self._ctx.state.life.closing

    @property
    def fence(self) -> StageFence:
        return self._ctx.state.fence

    @property
    def story(self) -> list[dict[str, object]]:
        """The last commands with the effects they had and the fence after them, without content (see `story`)."""
        return self._story.told()


def _count(tally: dict[str, int], key: str) -> None:
    tally[key] = tally.get(key, 0) + 1
