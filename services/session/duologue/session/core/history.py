"""The conversation: items in their order, and what of them reaches the model. SANS-I/O.

Rule 1. The order is the list's order; `previous_item_id` decides it, and every event tells the true predecessor.
Rule 2. The wire shows what was said, unless it was cut; the model is given what was heard (see `ledger`).
Rule 3. Bounded: the oldest items go, as a model's own context would let them go.
"""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import (
    ContentPart,
    ConversationEntry,
    Item,
    ItemAdded,
    ItemCreated,
    ItemDone,
    RealtimeProtocolError,
    assistant_item,
    message_item,
)
from duologue.session.core import pictures
from duologue.session.core.context import UNSET, SessionContext
from duologue.session.core.engine_session import HistoryItem


def previous_of(ctx: SessionContext, item_id: str) -> str | None:
    """The id of the shown item before this one."""
    before: str | None = None
    for entry in ctx.state.history:
        if entry.item.id == item_id:
            return before
        if entry.shown:
            before = entry.item.id
    return before


def place(ctx: SessionContext, entry: HistoryItem, after: str | None = None) -> None:
    """Put an item at the end, at the head (`after` "root"), or behind an item. Raises `item_not_found`."""
    history = ctx.state.history
    if ctx.state.echoes.named and _made_again(ctx, entry):
        return
    if after is None:
        history.append(entry)
    elif after == "root":
        history.insert(0, entry)
    else:
        at = next((n for n, known in enumerate(history) if known.item.id == after and known.shown), -1)
        if at < 0:
            raise RealtimeProtocolError("item_not_found", f"no item {after[:64]!r}", param="previous_item_id")
        history.insert(at + 1, entry)
    if len(history) > ctx.limits.max_history_items:
        pictures.forget(ctx, history.pop(0).item.id)


def _made_again(ctx: SessionContext, entry: HistoryItem) -> bool:
    """It stands where the owner before told that it does."""
    history = ctx.state.history
    at = next((n for n, known in enumerate(history) if known.item.id == entry.item.id), -1)
    if ctx.state.echoes.silent or not ctx.state.echoes.same_item(entry.item.id) or at < 0:
        return False
    history[at] = entry
    return True


def announce(ctx: SessionContext, item: Item) -> str | None:
    """`added` and `created`; returns the predecessor."""
    previous = previous_of(ctx, item.id)
    ctx.emit(ItemAdded(event_id=ctx.event_id(), previous_item_id=previous, item=item))
    ctx.emit(ItemCreated(event_id=ctx.event_id(), previous_item_id=previous, item=item))
    return previous


def finish(ctx: SessionContext, item: Item) -> None:
    ctx.emit(ItemDone(event_id=ctx.event_id(), previous_item_id=previous_of(ctx, item.id), item=item))


def without_marks(item: Item) -> Item:
    """What is kept of an item: the ledger has its marks, and every checkpoint would repeat them."""
    parts = () if item.content is UNSET else item.content
    return msgspec.structs.replace(
        item, content=tuple(msgspec.structs.replace(part, audio_text_marks=UNSET) for part in parts)
    )


def with_transcript(item: Item, transcript: str) -> Item:
    """The same item with the words of its audio part."""
    parts = () if item.content is UNSET else item.content
    return msgspec.structs.replace(
        item,
        content=tuple(
            msgspec.structs.replace(part, transcript=transcript)
            if part.type in ("input_audio", "output_audio")
            else part
            for part in parts
        ),
    )


def heard(ctx: SessionContext, entry: HistoryItem) -> Item:
    """An item as the model may know it."""
    ledger = ctx.state.ledgers.get(entry.response_id)
    if ledger is None:
        return entry.item if entry.settled is None else with_transcript(entry.item, entry.settled)
    text = ledger.text_at(ledger.heard_ms(ctx.now)) if ledger.generated_ms > 0 else entry.item.text
    return assistant_item(entry.response_id, status=entry.item.status, transcript=text)


def conversation(ctx: SessionContext) -> tuple[Item, ...]:
    """What `plan_response` is given: everything in order, assistant items as far as they were heard, nothing
    for those of which nothing was."""
    items = [heard(ctx, entry) for entry in ctx.state.history if entry.in_context and entry.done]
    return tuple(pictures.restored(ctx, item) for item in items if item.role != "assistant" or item.text)


def seed_opening_text(ctx: SessionContext) -> None:
    """The opening user turn of the configuration: it can be answered, and no event tells of it."""
    text = ctx.state.config.initial_user_text
    if not text:
        return
    item = message_item(ctx.item_id(), "user", ContentPart(type="input_text", text=text))
    ctx.state.history.append(HistoryItem(item, shown=False))
    ctx.state.intake.unanswered += 1


def entries_for_gap(ctx: SessionContext) -> list[ConversationEntry]:
    """The conversation in short, for a client that missed a part of it."""
    return [
        ConversationEntry(
            id=entry.item.id,
            role="tool" if entry.item.role is UNSET else entry.item.role,
            text=entry.item.text if entry.item.output is UNSET else entry.item.output,
        )
        for entry in ctx.state.history
        if entry.shown
    ]
