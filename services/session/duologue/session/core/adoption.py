"""A session goes on under a new owner, from what its last one had saved. SANS-I/O.

Rule 1. What the owner before had told stands: ids of its events are kept, and nothing that the journal holds is told
        again. What it had told beyond the checkpoint is streaming (see `outbox`), and is folded into the state.
Rule 2. What it had open in the stages is lost with it: as with a lost worker, the open response ends as failed
        and the context is rebuilt as the pipeline says. Input that no stage is known to have consumed is kept.
Rule 3. Its clients' commands are applied once: those that were ahead of their turn are known again.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable

import msgspec

from duologue.fence import DeliveryId
from duologue.session.core import failures, stages
from duologue.session.core.checkpoints import Checkpoints
from duologue.session.core.commands import Adopted, FromClient
from duologue.session.core.context import SessionContext
from duologue.session.core.engine_session import Applied, DuplexEngineSession, OpenResponse

_SOUND = ("response.output_audio.delta", "response.audio.delta")
_WORDS = (
    "response.output_audio_transcript.delta",
    "response.audio_transcript.delta",
    "response.output_text.delta",
    "response.text.delta",
)


class _Told(msgspec.Struct):
    """As much of a rendered event as the fold reads."""

    type: str
    response_id: str = ""
    delta: str = ""


_decode = msgspec.json.Decoder(_Told).decode


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
    ctx.effects.extend(entry.deliver() for entry in state.outbox.sent)
    checkpoints.due = True
    if state.life.closing:
        return
    if state.response is not None:
        _fold(ctx, state.response, (body for id, body in fact.told if id > made))
    stages.unbind(ctx, "shard_lost", death=False)
    failures.end_failed(ctx, "shard_lost")
    stages.open_stages(ctx)


def _fold(ctx: SessionContext, response: OpenResponse, bodies: Iterable[bytes]) -> None:
    """Take into the response what its client has of it beyond the checkpoint."""
    ledger = ctx.ledger(response.id)
    for body in bodies:
        event = _decode(body)
        if event.response_id != response.id:
            continue
        if event.type in _SOUND:
            size = len(binascii.a2b_base64(event.delta))
            ledger.generated_ms += response.format.duration_ms(size)
            ledger.sent(ledger.generated_ms, ctx.now)
            response.spoke = response.has_audio = ctx.state.voiced = True
        elif event.type in _WORDS:
            response.spoke = True
            response.text += event.delta
            if response.speaks:
                ledger.text = response.text
                ledger.marks.append((len(response.text), round(ledger.generated_ms)))


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
