"""Acknowledgements, truncation and the stop set: what the client played of a response. SANS-I/O."""

from __future__ import annotations

from duologue.protocol.duplex import (
    AckPlayback,
    ItemTruncated,
    OutputCleared,
    Playback,
    PlaybackAcknowledged,
    PlaybackState,
    RealtimeProtocolError,
    TruncateItem,
)
from duologue.session.core import history
from duologue.session.core.context import UNSET, SessionContext
from duologue.session.core.effects import ControlStage, Invalidate
from duologue.session.core.ledger import PlaybackLedger


def open_ledger(ctx: SessionContext, response_id: str) -> None:
    """A fresh ledger for a new response; the oldest one is settled into the history."""
    ledgers = ctx.state.ledgers
    ledgers[response_id] = PlaybackLedger(response_id)
    if len(ledgers) > ctx.limits.max_ledgers:
        oldest = next(iter(ledgers))
        entry = ctx.state.item_of(f"item_{oldest}")
        if entry is not None:
            entry.settled = history.heard(ctx, entry).text
        del ledgers[oldest]


def acknowledge(ctx: SessionContext, command: AckPlayback) -> None:
    """`playback.ack`: cursors are monotonic and clamped to what was sent; a late one is no error."""
    ledger = _target(ctx, command)
    if ledger is None:
        ctx.observed.late_acks += 1
    else:
        moved = ledger.acknowledge(
            float(command.played_ms), None if command.committed_ms is None else float(command.committed_ms)
        )
        ctx.observed.late_acks += not (moved or command.truncate)
        if command.truncate:
            _cut(ctx, ledger, min(float(command.played_ms), ledger.sent_ms))
    _tell(ctx, ledger, command.played_ms, command.committed_ms, truncate=command.truncate)


def _target(ctx: SessionContext, command: AckPlayback) -> PlaybackLedger | None:
    """The ledger that an acknowledgement means. Raises RealtimeProtocolError."""
    response_id, item_id = command.response_id, command.item_id
    if response_id is not None and item_id is not None and item_id != f"item_{response_id}":
        raise RealtimeProtocolError(
            "playback_item_mismatch", "response_id and item_id name different responses", param="item_id"
        )
    if response_id is None and item_id is None:
        return ctx.state.ledgers.get(ctx.state.last_response_id)
    named = response_id if response_id is not None else (item_id or "").removeprefix("item_")
    ledger = ctx.state.ledgers.get(named)
    if ledger is None:
        param = "response_id" if response_id is not None else "item_id"
        raise RealtimeProtocolError("playback_item_not_found", f"no response {named[:80]!r}", param=param)
    return ledger


def _tell(
    ctx: SessionContext,
    ledger: PlaybackLedger | None,
    played_ms: float,
    committed_ms: float | None,
    *,
    truncate: bool,
) -> None:
    held = ledger is not None and bool(ledger.text_at(ledger.committed_ms)) and ledger.committed_ms > 0
    ctx.emit(
        PlaybackAcknowledged(
            event_id=ctx.event_id(),
            event=PlaybackState(
                session_id=ctx.state.session_id,
                epoch=ctx.state.epoch,
                item_id=None if ledger is None else f"item_{ledger.response_id}",
                played_ms=played_ms,
                committed_ms=played_ms if committed_ms is None else committed_ms,
                truncate=truncate,
                playback=Playback() if ledger is None else ledger.cursors(),
                history_committed=held,
            ),
        )
    )


def truncate(ctx: SessionContext, command: TruncateItem) -> None:
    """`conversation.item.truncate`: clamped to what exists, for good. Raises RealtimeProtocolError."""
    entry = ctx.state.item_of(command.item_id)
    if entry is None:
        raise RealtimeProtocolError("item_not_found", f"no item {command.item_id[:80]!r}", param="item_id")
    parts = () if entry.item.content is UNSET else entry.item.content
    ledger = ctx.state.ledgers.get(entry.response_id)
    open_now = ctx.response is not None and ctx.response.id == entry.response_id and ctx.response.speaks
    if entry.item.role != "assistant" or not (open_now or any(part.type == "output_audio" for part in parts)):
        raise RealtimeProtocolError("bad_event", "only audio of the assistant can be truncated", param="item_id")
    if command.content_index >= max(len(parts), 1) or (parts and parts[command.content_index].type != "output_audio"):
        raise RealtimeProtocolError("bad_event", "no audio part at this index", param="content_index")
    if ledger is None:
        ledger = PlaybackLedger(entry.response_id, text=entry.item.text)
    effective = _cut(ctx, ledger, float(command.audio_end_ms))
    _tell(ctx, ledger, effective, effective, truncate=True)


def _cut(ctx: SessionContext, ledger: PlaybackLedger, ms: float) -> int:
    """Truncate the item of a response and say so; returns the effective value."""
    effective = round(ledger.truncate(ms))
    tell_heard(ctx, ledger, effective)
    item_id = f"item_{ledger.response_id}"
    entry = ctx.state.item_of(item_id)
    if entry is not None and not (ctx.response is not None and ctx.response.id == ledger.response_id):
        entry.item = history.with_transcript(entry.item, ledger.text_at(ledger.cap_ms))
    told = {
        "type": "conversation.item.truncated",
        "session_id": ctx.state.session_id,
        "item_id": item_id,
        "content_index": 0,
        "audio_end_ms": effective,
        "truncated": True,
    }
    ctx.emit(
        ItemTruncated(event_id=ctx.event_id(), item_id=item_id, content_index=0, audio_end_ms=effective, event=told)
    )
    return effective


def tell_heard(ctx: SessionContext, ledger: PlaybackLedger, ms: float) -> None:
    """Let the model know how much of its latest answer was heard, if it keeps the conversation itself."""
    if ledger.response_id != ctx.state.last_response_id or not ctx.state.ready:
        return
    control = ctx.plugin.on_heard(ctx.model, round(ms))
    if control is not None:
        ctx.effects.append(ControlStage(ctx.state.fence, control.stage, control.kind, control.body))


def stop_playing(ctx: SessionContext, ledger: PlaybackLedger) -> None:
    """The stop set for a response that is finished and still played: the speaker is told to be silent and the
    item keeps what was heard."""
    purge(ctx, ledger.response_id)
    ctx.emit(OutputCleared(event_id=ctx.event_id(), response_id=ledger.response_id))
    _cut(ctx, ledger, ledger.heard_ms(ctx.now))


def purge(ctx: SessionContext, response_id: str) -> None:
    """Take back the audio of a response that has no number yet, here and at the egress."""
    ctx.observed.purged += ctx.state.outbox.purge(response_id)
    ctx.effects.append(Invalidate(response_id, ctx.state.epoch))
