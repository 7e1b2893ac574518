"""Commands that are sent again to an heir, and that the owner before had answered beyond its checkpoint. SANS-I/O.

Most are carried out again, for the state that they leave, and their events are echoes (see `echoes`). Here stand
those that would be refused now, or do a second time what cannot be done twice.
"""

from __future__ import annotations

from duologue.protocol.duplex import (
    CancelResponse,
    CreateResponse,
    DeleteItem,
    DuplexCommand,
    RetrieveItem,
    SessionHeartbeat,
)
from duologue.session.core import turns
from duologue.session.core.context import SessionContext


def answered(ctx: SessionContext, command: DuplexCommand) -> bool:
    """Its answer was told, and nothing of it is left to be done."""
    echoes = ctx.state.echoes
    if not echoes.told:
        return False
    echoes.expire(ctx.now)
    if command.event_id is not None and echoes.claim(f"error {command.event_id}"):
        return True  # a refusal changed nothing
    match command:
        case SessionHeartbeat():
            return echoes.claim("session.heartbeat_ack")
        case RetrieveItem():
            return echoes.claim(f"conversation.item.retrieved {command.item_id}")
        case DeleteItem():
            gone = ctx.state.item_of(command.item_id) is None
            return gone and echoes.claim(f"conversation.item.deleted {command.item_id}")
        case CancelResponse():
            return _cancelled(ctx, command)
        case CreateResponse():
            return turns.was_answered(ctx)
        case _:
            return False


def _cancelled(ctx: SessionContext, command: CancelResponse) -> bool:
    if not ctx.state.echoes.claim("response.cancel"):
        return False
    turns.drop_deferred(ctx)
    return True
