"""A session goes on under a new owner, from what its last one had saved. SANS-I/O.

Rule 1. What the owner before had told stands: ids of its events are kept, and nothing that the journal holds is told
        again. What it had told beyond the checkpoint is folded into the state (see `folding`, `echoes`).
Rule 2. What it had open in the stages is lost with it: as with a lost worker, the open response ends as failed
        and the context is rebuilt as the pipeline says. Input that no stage is known to have consumed is kept.
Rule 3. Its clients' commands are applied once: those that were ahead of their turn are known again.
Rule 4. What cannot be known of it is a gap, which whoever attaches next is told of.
"""

from __future__ import annotations

from typing import Final

import msgspec

from duologue.fence import DeliveryId
from duologue.session.core import failures, folding, stages, tools, turns
from duologue.session.core.checkpoints import Checkpoints
from duologue.session.core.commands import Adopted, FromClient
from duologue.session.core.context import SessionContext
from duologue.session.core.echoes import key_of
from duologue.session.core.engine_session import Applied, DuplexEngineSession
from duologue.session.core.outbox import Entry

_ENDS: Final = {"session.closed": 1000, "session.expired": 1001}
"""Terminal events, and the code that a socket is closed with after them."""
_ERROR_ENDS: Final = {"error session_closed": 1000, "error session_expired": 1001}
"""The same in the OpenAI dialects."""


class _End(msgspec.Struct):
    reason: str = ""


_decode_end = msgspec.json.Decoder(_End).decode


def inherit(state: DuplexEngineSession, before: int) -> None:
    """The state as an heir of the owner `before` begins with it."""
    state.outbox.inherit(before)
    state.covered = state.saving = state.applied
    state.intake.again, state.ahead = [*state.intake.again, *state.ahead], []
    state.life.closed = False


def adopt(ctx: SessionContext, fact: Adopted, checkpoints: Checkpoints) -> None:
    """Go on. The step ends with a checkpoint: nothing may be told before it is confirmed."""
    state = ctx.state
    state.owner = fact.owner
    made = DeliveryId(fact.before, state.outbox.n)
    state.outbox.journaled(fact.journaled)
    beyond = [(id, body) for id, body in fact.told if id > made]
    if beyond and not state.life.closing:
        _take_end(ctx, *beyond[-1])
    ctx.effects.extend(entry.deliver() for entry in state.outbox.sent)
    checkpoints.due = True
    if state.life.closing:
        return
    ended = folding.fold(ctx, [body for _, body in beyond]) if beyond else []
    state.echoes.gap = state.echoes.gap or (fact.lost and bool(state.echoes.told or not beyond))
    stages.unbind(ctx, "shard_lost", death=False)
    if ended and state.response is None:
        stages.advance_epoch(ctx)  # what made it is not to go on with it
    failures.end_failed(ctx, "shard_lost")
    for response in ended:
        tools.flush(ctx, response)
    if ended:
        turns.go_on(ctx)
    stages.open_stages(ctx)


def _take_end(ctx: SessionContext, id: DeliveryId, body: bytes) -> None:
    """The session was over: its last event is known again by whoever attaches, as if we had saved it."""
    state = ctx.state
    try:
        key = key_of(body) or ""
    except msgspec.MsgspecError:
        return  # the fold makes it a gap
    kind = key if key in _ERROR_ENDS else key.partition(" ")[0]
    code = _ERROR_ENDS.get(kind) or _ENDS.get(kind)
    if code is None:
        return
    reason = _decode_end(body).reason or kind
    state.response = None
    state.life.closing, state.life.reason = True, reason
    end = Entry(id.n, body, True, close_code=code, close_reason=reason, of=id.owner)
    state.outbox.sent.append(end)
    state.outbox.size_bytes += len(body)


def applied_before(ctx: SessionContext, fact: FromClient) -> bool:
    """The command is sent again, and the owner before us had applied it ahead of its turn."""
    state = ctx.state
    event_id = fact.command.event_id
    found = next((one for one in state.intake.again if _same(one, fact.no == one.no, event_id)), None)
    if found is None:
        return False
    state.intake.again.remove(found)
    if state.intake.queue:
        state.ahead.append(Applied(fact.no, event_id))
    else:
        state.applied = Applied(fact.no, event_id or state.applied.event_id, state.applied.audio_end_ms)
    return True


def _same(one: Applied, same_no: bool, event_id: str | None) -> bool:
    return same_no or (event_id is not None and event_id == one.event_id)
