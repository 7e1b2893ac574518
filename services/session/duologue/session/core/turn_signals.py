"""`turn.signal`: a client tells where the turn stands. SANS-I/O. Signals that are commands in disguise were
folded when the frame was read."""

from __future__ import annotations

from duologue.protocol.duplex import TurnEvent, TurnSignal
from duologue.session.core import closing
from duologue.session.core.context import SessionContext

STATES = {
    "user_started": "user_speaking",
    "user_committed": "user_committed",
    "assistant_started": "assistant_generating",
    "assistant_done": "idle",
}
"""The `turn_state` after a signal; any other signal leaves it."""

CLOSING = ("timeout", "close")


def signal(ctx: SessionContext, command: TurnSignal) -> None:
    if command.event in CLOSING:
        closing.close(ctx, command.event)
        return
    _tell(ctx, command.event)


def user_again(ctx: SessionContext) -> None:
    """The answer to a committed turn was lost with one of its units: the floor is the user's."""
    _tell(ctx, "user_started")


def _tell(ctx: SessionContext, event: str) -> None:
    state = ctx.state
    state.turn_state = STATES.get(event, state.turn_state)
    ctx.emit(
        TurnEvent(
            event_id=ctx.event_id(),
            session_id=state.session_id,
            event=event,
            turn_state=state.turn_state,
            epoch=state.epoch,
        )
    )
