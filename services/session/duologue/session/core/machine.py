"""DuplexSessionMachine: one session as a machine. SANS-I/O: no clock, loop, socket, thread, randomness or log.

Rule 1. `handle` is the only door: synchronous, total, deterministic. It never raises for anything that a client,
        a worker or the store can do; time is an argument and recorded.
Rule 2. Whatever finishes later comes back as a command with the fence that it started under. Staleness is
        decided here, once: by equality for stage outputs, never for acknowledgements and durability.
Rule 3. An exception inside is our bug: the last good state is restored, the open response ends as failed, the
        client is told `internal_error`; the second one in a minute closes the session with its story.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Self, assert_never

import msgspec

from duologue.fence import CommandNo, StageFence
from duologue.model.plugin import DuplexModelPlugin
from duologue.protocol.duplex import (
    AppendAudio,
    Commit,
    CreateItem,
    Dialect,
    DuplexCommand,
    RealtimeProtocolError,
)
from duologue.session.core import (
    closing,
    config,
    deadlines,
    failures,
    history,
    input_state,
    intake,
    listening,
    opening,
    outputs,
    overflow,
    pictures,
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
    InputRefused,
    Offloaded,
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
from duologue.session.core.effects import Close, CloseStages, Deliver, SessionEffect, TellFault
from duologue.session.core.limits import SessionLimits
from duologue.session.core.observations import Observations
from duologue.session.core.recovery import place, recover

STORY_LENGTH = 200

_SAMPLE_COST = 4  # the input limit counts float32 at 16 kHz
_COST_PER_BYTE = {"pcm16": 2.0, "pcm_f32le": 1.0, "g711_ulaw": 4.0, "g711_alaw": 4.0}


class DuplexSessionMachine:
    """One session. Made by `open` or `restore`; afterwards only `handle` changes it."""

    def __init__(self, ctx: SessionContext) -> None:
        self._ctx = ctx
        self._checkpoints = Checkpoints()
        self._story: deque[tuple[float, type, tuple[type, ...]]] = deque(maxlen=STORY_LENGTH)

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
        ctx.now = ctx.state.now = max(now, ctx.state.now)
        ctx.effects = effects = []
        mark = ctx.state.outbox.n
        try:
            self._dispatch(ctx, command)
            self._settle()
        except Exception as fault:  # our bug, whatever it is: rule 3
            effects = [TellFault(place(fault)), *self._recover(mark)]
        self._story.append((ctx.now, type(command), tuple(map(type, effects))))
        return effects

    def _dispatch(self, ctx: SessionContext, command: SessionCommand) -> None:
        state = ctx.state
        match command:
            case FromClient():
                if state.life.closing:
                    ctx.stale("command")
                else:
                    intake.from_client(ctx, command)
            case StageOutput():
                if self._current(command.fence, "output"):
                    state.life.active_at = ctx.now if state.life.detached_at < 0 else state.life.active_at
                    outputs.stage_output(ctx, command)
                elif state.aborting.units and self._bound(command.fence, "output"):
                    stages.consumed_after_all(ctx, command.unit)
            case Delivered():
                if command.through.owner >= state.owner:
                    self._delivered(ctx, command.through.n)
            case Covered():
                self._covered(ctx, command.number)
            case Tick():
                deadlines.tick(ctx)
            case CheckpointWanted():
                self._checkpoints.want(ctx)
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
                if self._bound(command.fence, "aborted"):
                    stages.aborted(ctx, command)
            case StageFailed():
                if self._current(command.fence, "failure"):
                    failures.unit_failed(ctx, command)
            case StagesReady():
                if self._bound(command.fence, "ready") and not state.ready:
                    stages.bound(ctx, command.fence)
                    silence.expect(ctx)
            case StagesLost():
                if self._bound(command.fence, "lost"):
                    failures.lost(ctx, command)
            case Attached():
                self._attached(ctx, command)
            case Detached():
                self._detached(ctx, command)
            case CloseRequested():
                closing.close(ctx, command.reason, close_code=command.close_code)
            case Adopted():
                self._adopted(ctx, command)
            case _:
                assert_never(command)

    def _current(self, fence: StageFence, kind: str) -> bool:
        """The gate: what a stage says means something only under the fence in force."""
        state = self._ctx.state
        if (
            fence.epoch == state.epoch
            and fence.binding == state.binding
            and fence.owner == state.owner
            and not state.life.closing
        ):
            return True
        self._ctx.stale(kind)
        return False

    def _bound(self, fence: StageFence, kind: str) -> bool:
        """The same without the epoch: true of a binding whatever was cancelled since."""
        state = self._ctx.state
        if fence.binding == state.binding and fence.owner == state.owner and not state.life.closing:
            return True
        self._ctx.stale(kind)
        return False

    # -- delivery and durability (never fenced) -----------------------------------------------------------

    def _delivered(self, ctx: SessionContext, through: int) -> None:
        for entry in ctx.state.outbox.acknowledge(through):
            if entry.media_of:
                ledger = ctx.state.ledgers.get(entry.media_of)
                if ledger is not None:
                    ledger.sent(entry.through_ms, ctx.now)
        intake.resume(ctx)

    def _covered(self, ctx: SessionContext, number: int) -> None:
        state = ctx.state
        if state.outbox.outstanding and number >= state.outbox.outstanding:
            state.covered = state.saving
        ctx.effects.extend(state.outbox.confirm(number))
        intake.resume(ctx)

    # -- attachment ---------------------------------------------------------------------------------------

    def _attached(self, ctx: SessionContext, command: Attached) -> None:
        life = ctx.state.life
        if command.generation < life.generation:
            ctx.stale("attachment")
            return
        life.generation = command.generation
        life.detached_at = -1.0
        life.active_at = ctx.now
        ctx.state.outbox.dirty = True
        ctx.effects.extend(self.unacknowledged())
        intake.release(ctx)

    def _detached(self, ctx: SessionContext, command: Detached) -> None:
        life = ctx.state.life
        if command.generation < life.generation:
            ctx.stale("attachment")
            return
        life.detached_at = ctx.now
        ctx.state.outbox.dirty = True
        ctx.effects.extend(self.unacknowledged())
        if command.clean and not ctx.duplex:
            closing.close(ctx, "client_close")

    def _adopted(self, ctx: SessionContext, command: Adopted) -> None:
        """A new owner goes on: what the old one had open is lost, what it had told stands."""
        state = ctx.state
        state.owner = command.owner
        ctx.effects.extend(state.outbox.renumber(command.journaled.n))
        sound = state.sound
        sound.flights, sound.flight_bytes, sound.in_window = {}, 0, 0
        stages.unbind(ctx)
        failures.end_failed(ctx, "shard_lost")
        stages.open_stages(ctx)

    # -- the end of a step --------------------------------------------------------------------------------

    def _settle(self) -> None:
        ctx = self._ctx
        if ctx.overflow:
            overflow.settle(ctx)
        self._checkpoints.save_if_due(ctx)
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

    def session_object(self) -> bytes:
        """The session as `session.created` and `session.resumed` show it: JSON in the session's dialect."""
        return config.session_json(self._ctx)

    def items_for_gap(self) -> bytes:
        """The conversation in short: a JSON list of id, role, text."""
        return msgspec.json.encode(history.entries_for_gap(self._ctx))

    def unacknowledged(self) -> list[Deliver]:
        """What the egress has to be given again: it drops what the journal holds."""
        return [entry.deliver() for entry in self._ctx.state.outbox.sent]

    @staticmethod
    def input_cost(command: DuplexCommand) -> int:
        """What a command counts against the input limit before it is looked at: its sound as float32 at 16 kHz."""
        if isinstance(command, AppendAudio):
            return round(_cost(command.audio, command.format, command.sample_rate_hz)) + command.video_bytes
        if isinstance(command, CreateItem):
            sounds = round(sum(_cost(p.audio, p.format, p.sample_rate_hz) for p in command.audio))
            return sounds + pictures.size(command.item)
        return 0

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
    def closed(self) -> bool:
        return self._ctx.state.life.closing

    @property
    def fence(self) -> StageFence:
        return self._ctx.state.fence

    @property
    def story(self) -> list[tuple[float, str, list[str]]]:
        """The last commands with the effects they had, without content."""
        return [(at, kind.__name__, [effect.__name__ for effect in done]) for at, kind, done in self._story]


def _count(tally: dict[str, int], key: str) -> None:
    tally[key] = tally.get(key, 0) + 1


def _cost(audio: bytes, name: str | None, rate: int | None) -> float:
    per_byte = _COST_PER_BYTE.get(name or "pcm16", 2.0)
    if not rate:
        return len(audio) * per_byte * (2 if name in ("g711_ulaw", "g711_alaw") else 1)
    return len(audio) * per_byte * 16_000 / rate
