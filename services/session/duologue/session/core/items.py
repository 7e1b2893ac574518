"""Item commands: create, retrieve, delete. SANS-I/O. Each raises RealtimeProtocolError before it changes anything."""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import (
    CreateItem,
    DeleteItem,
    Item,
    ItemDeleted,
    ItemRetrieved,
    RealtimeProtocolError,
    RetrieveItem,
)
from duologue.session.core import history, pictures, stages, tools, turns
from duologue.session.core.context import UNSET, SessionContext
from duologue.session.core.ears import loudness
from duologue.session.core.engine_session import HistoryItem, Segment, SoundBuffer


def create(ctx: SessionContext, command: CreateItem, pcm: bytes) -> None:
    """`conversation.item.create`; `pcm` is the sound of its audio parts at the model's rate."""
    item = command.item
    echoes = ctx.state.echoes
    if item.id and ctx.state.item_of(item.id) is not None and not echoes.names(item.id):
        raise RealtimeProtocolError(
            "item_create_duplicate_item_id", f"the item {item.id[:64]!r} exists", param="item.id"
        )
    call = tools.check_result(ctx, item) if item.type == "function_call_output" else None
    pictures.check(ctx, item)
    if not item.id:
        item = msgspec.structs.replace(item, id=echoes.unnamed() or ctx.item_id())
    entry = HistoryItem(item)
    history.place(ctx, entry, command.previous_item_id)
    entry.item = item = pictures.keep(ctx, item)
    if item.type == "function_call":
        tools.given(ctx, item)
    if command.audio:
        _spoken(ctx, item, pcm)
        return
    history.announce(ctx, item)
    if call is not None:
        call.state = "answered"
        ctx.state.intake.unanswered += 1
        ctx.state.intake.results += 1
        history.finish(ctx, item)
        _tell_model(ctx, item)
        turns.plan_if_due(ctx)
        return
    if item.content is not UNSET and not item.content:
        entry.in_context = False
        return
    if item.role == "user":
        ctx.state.intake.unanswered += 1
    history.finish(ctx, item)
    if not ctx.plans and (plan := ctx.plugin.on_item(ctx.model, pictures.restored(ctx, item))) is not None:
        stages.submit_plan(ctx, plan)


def _spoken(ctx: SessionContext, item: Item, pcm: bytes) -> None:
    """An item of audio is a committed turn under its own id; nothing asks for an answer yet."""
    state = ctx.state
    told = {"type": "input.committed", "session_id": state.session_id, "turn_id": state.turn_id}
    told |= {"epoch": state.epoch, "history_len": len(state.history), "native_audio": True}
    transcript = item.text or None
    turns.give_up_calls(ctx)
    turns.announce_commit(ctx, item, told, transcript)
    if not pcm or loudness(pcm) < state.config.overlap_silence_rms:
        return
    sound = SoundBuffer()
    sound.push(pcm, Segment(len(pcm), state.intake.clock_ms, True))
    if not ctx.auto:
        turns.retain(ctx, sound, item.id, transcript)
        return
    stages.pad(sound, ctx.unit_bytes)
    sound.segments[-1].final = True
    if ctx.plans and transcript is None:
        state.intake.awaiting.append(item.id)
    if state.sound.feed.segments:
        stages.pad(state.sound.feed, ctx.unit_bytes)
    state.sound.feed.join(sound)
    stages.pump(ctx)


def _tell_model(ctx: SessionContext, item: Item) -> None:
    """Give the model the result of its call. A model that plans is asked to go on when the last one is there,
    except in the OpenAI dialects, whose clients ask for that themselves."""
    plan = ctx.plugin.on_tool_output(ctx.model, item)
    if plan is not None:
        stages.submit_plan(ctx, plan)
    waiting = any(call.state == "open" for call in ctx.state.calls)
    if plan is None and ctx.plans and ctx.auto and ctx.duplex and not waiting:
        if ctx.response is None:
            turns.answer(ctx)
        else:
            ctx.state.intake.answer_after = True


def retrieve(ctx: SessionContext, command: RetrieveItem) -> None:
    entry = _known(ctx, command.item_id)
    ctx.emit(ItemRetrieved(event_id=ctx.event_id(), item=entry.item))


def delete(ctx: SessionContext, command: DeleteItem) -> None:
    entry = _known(ctx, command.item_id)
    ctx.state.history.remove(entry)
    pictures.forget(ctx, command.item_id)
    told = {
        "type": "conversation.item.deleted",
        "session_id": ctx.state.session_id,
        "item_id": command.item_id,
        "deleted": True,
    }
    ctx.emit(ItemDeleted(event_id=ctx.event_id(), item_id=command.item_id, event=told))


def _known(ctx: SessionContext, item_id: str) -> HistoryItem:
    entry = ctx.state.item_of(item_id)
    if entry is None or not entry.shown:
        raise RealtimeProtocolError("item_not_found", f"no item {item_id[:64]!r}", param="item_id")
    return entry
