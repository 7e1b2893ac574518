"""The life of a response: how it opens, what it says, how it ends. SANS-I/O.

    (promised | model speaks) -> open -> [speak] -> deltas -> tail -> done
                                      \\-> listen -> short tail -> done

Rule 1. Exactly one `response.done` for each `response.created`; at most one message response is open.
Rule 2. The item of the wire holds all that was said of a completed response, and what was acknowledged (OpenAI
        dialects: what had time to be played) of a cancelled one. History holds what was heard: see `ledger`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from duologue.model.outputs import ModelOutput
from duologue.protocol.duplex import (
    AudioDelta,
    AudioDone,
    AudioMetadata,
    ContentPart,
    ContentPartAdded,
    ContentPartDone,
    Item,
    ListenMetadata,
    ListenResponse,
    OutputItemAdded,
    OutputItemDone,
    RateLimitsUpdated,
    Response,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    ResponseOptions,
    ResponseSpeak,
    SpeakMetadata,
    StatusDetails,
    TextDelta,
    TextDone,
    TextMark,
    TranscriptDelta,
    TranscriptDone,
    assistant_item,
)
from duologue.session.core import history, playback, usage
from duologue.session.core.context import UNSET, SessionContext
from duologue.session.core.engine_session import HistoryItem, OpenResponse, Totals

# -- opening ----------------------------------------------------------------------------------------------


def open_response(ctx: SessionContext, *, promised: bool, options: ResponseOptions | None = None) -> OpenResponse:
    """Announce a response and its empty item."""
    state = ctx.state
    config = state.config
    chosen = options or ResponseOptions()
    modalities = config.modalities if chosen.modalities is None else chosen.modalities
    response = OpenResponse(
        id=ctx.response_id(),
        epoch=state.epoch,
        turn_id=state.turn_id,
        promised=promised,
        speaks="audio" in modalities,
        format=ctx.voice.format_of(config.output_format, chosen.output_format),
        modalities=modalities,
        metadata=config.metadata if chosen.metadata is None else chosen.metadata,
        in_history=chosen.conversation != "none",
        options=given(chosen),
    )
    announce(ctx, response, begin(ctx, response))
    return response


def begin(ctx: SessionContext, response: OpenResponse) -> Item:
    """It is open from here on; its item, which is empty."""
    state = ctx.state
    state.response = response
    state.last_response_id = response.id
    state.turn_state = "assistant_generating"
    playback.open_ledger(ctx, response.id)
    ctx.voice.begin(ctx.traits.output_rate_hz, response.format)
    state.urgent = True
    item = assistant_item(response.id, status="in_progress")
    history.place(ctx, HistoryItem(item, response.id, in_context=response.in_history, done=False))
    return item


def announce(ctx: SessionContext, response: OpenResponse, item: Item) -> None:
    """Tell that it is open."""
    modalities = response.modalities
    ctx.emit(
        ResponseCreated(
            event_id=ctx.event_id(),
            response=Response(id=response.id, modalities=modalities, metadata=_created_metadata(ctx, response)),
            response_id=response.id,
        )
    )
    response.announced = not ctx.overflow
    history.announce(ctx, item)
    ctx.emit(OutputItemAdded(event_id=ctx.event_id(), response_id=response.id, item=item))
    if response.speaks:
        _part_added(ctx, response, ContentPart(type="audio", transcript=""))


def given(options: ResponseOptions) -> dict[str, Any]:
    """The options that were set, as the plugin sees them."""
    return {name: msgspec.to_builtins(getattr(options, name)) for name in options.given()}


def _created_metadata(ctx: SessionContext, response: OpenResponse) -> dict[str, Any] | None:
    if not ctx.duplex:
        return response.metadata
    event = {
        "type": "response.created",
        "session_id": ctx.state.session_id,
        "response_id": response.id,
        "epoch": response.epoch,
        "modalities": list(response.modalities),
    }
    return {**(response.metadata or {}), "duplex_event": event}


def _item_id(response: OpenResponse) -> str:
    return f"item_{response.id}"


def _part_added(ctx: SessionContext, response: OpenResponse, part: ContentPart) -> None:
    ctx.emit(ContentPartAdded(event_id=ctx.event_id(), response_id=response.id, item_id=_item_id(response), part=part))


def _part_done(ctx: SessionContext, response: OpenResponse, part: ContentPart) -> None:
    ctx.emit(ContentPartDone(event_id=ctx.event_id(), response_id=response.id, item_id=_item_id(response), part=part))


# -- what the model says ----------------------------------------------------------------------------------


def say(ctx: SessionContext, response: OpenResponse, output: ModelOutput, pcm: bytes) -> None:
    """Account for one output with text or audio, and stream it. `pcm`: int16 at `audio_rate_hz`, or empty."""
    if not response.spoke:
        response.spoke = True
        ctx.emit(
            ResponseSpeak(
                event_id=ctx.event_id(),
                response_id=response.id,
                item_id=_item_id(response),
                metadata=SpeakMetadata(session_id=ctx.state.session_id, epoch=response.epoch),
            ),
            structural=False,
        )
    ctx.state.turn_state = "assistant_playing"
    if response.speaks:
        _say_aloud(ctx, response, output, pcm)
    elif output.text:
        _write(ctx, response, output.text)


def _say_aloud(ctx: SessionContext, response: OpenResponse, output: ModelOutput, pcm: bytes) -> None:
    ledger = ctx.ledger(response.id)
    chars, start_ms = len(response.text), ledger.generated_ms
    if pcm:
        ledger.generated_ms += len(pcm) / 2 / output.audio_rate_hz * 1000
    response.text += output.text
    ledger.text = response.text
    marks: tuple[TextMark, ...] = ()
    if output.marks:
        marks = tuple([TextMark(chars + mark.text_chars, round(start_ms + mark.audio_ms)) for mark in output.marks])
    elif output.text and pcm:
        marks = (TextMark(len(response.text), round(ledger.generated_ms)),)
    for mark in marks:
        ledger.marks.append((mark.text_chars, mark.audio_end_ms))
    metadata = AudioMetadata(
        session_id=ctx.state.session_id,
        epoch=response.epoch,
        end_of_turn=output.end_of_turn,
        playback=ledger.cursors(),
        audio_duration_ms=round(ledger.generated_ms),
        audio_text_marks=marks or UNSET,
    )
    if pcm:
        if not response.has_audio:
            ctx.observed.first_audio(ctx.now)
        ctx.state.voiced = response.has_audio = True
        sound = ctx.voice.encode(pcm, output.audio_rate_hz, last=output.end_of_turn)
        _audio(ctx, response, sound, metadata, ledger.generated_ms)
    ctx.emit(
        TranscriptDelta(
            event_id=ctx.event_id(),
            response_id=response.id,
            item_id=_item_id(response),
            delta=output.text,
            metadata=UNSET if pcm else metadata,
        ),
        structural=False,
    )


def _audio(
    ctx: SessionContext, response: OpenResponse, sound: bytes, metadata: AudioMetadata, through_ms: float
) -> None:
    ctx.emit(
        AudioDelta(
            event_id=ctx.event_id(),
            response_id=response.id,
            item_id=_item_id(response),
            delta=sound,
            format=response.format.name,
            sample_rate_hz=response.format.rate,
            metadata=metadata,
        ),
        structural=False,
        media_of=response.id,
        through_ms=through_ms,
    )


def _write(ctx: SessionContext, response: OpenResponse, text: str) -> None:
    if not response.has_text_part:
        response.has_text_part = True
        _part_added(ctx, response, ContentPart(type="text", text=""))
    response.text += text
    ctx.emit(
        TextDelta(event_id=ctx.event_id(), response_id=response.id, item_id=_item_id(response), delta=text),
        structural=False,
    )


# -- endings ----------------------------------------------------------------------------------------------


def listened(ctx: SessionContext, reason: str, response: OpenResponse | None = None) -> None:
    """The model keeps listening. With a response: this ends it, and its tail follows."""
    ctx.emit(
        ResponseListen(
            event_id=ctx.event_id(),
            session_id=ctx.state.session_id,
            epoch=ctx.state.epoch,
            response=ListenResponse(
                metadata=ListenMetadata(reason=reason, model_listen=reason == "model_listen"),
                id=UNSET if response is None else response.id,
            ),
            response_id=UNSET if response is None else response.id,
        ),
        structural=response is not None,
    )


def complete(ctx: SessionContext, response: OpenResponse, reason: str | None = "stop") -> None:
    """A normal end: the turn is over. `reason` None: it ended without the model's last word."""
    ledger = ctx.ledger(response.id)
    ledger.commits_all = ctx.state.config.playback_commit_policy == "commit_all_on_done" and reason is not None
    tail = ctx.voice.finish() if response.has_audio else b""
    if tail:
        metadata = AudioMetadata(
            session_id=ctx.state.session_id,
            epoch=response.epoch,
            end_of_turn=True,
            playback=ledger.cursors(),
            audio_duration_ms=round(ledger.generated_ms),
        )
        _audio(ctx, response, tail, metadata, ledger.generated_ms)
    if ctx.overflow:
        close_response(ctx, response, "failed", "output_backpressure")
        return
    close_response(ctx, response, "completed", reason)
    ctx.state.turn_id += 1


def close_response(ctx: SessionContext, response: OpenResponse, status: str, reason: str | None) -> None:
    """The tail, in the documented order; afterwards no response is open."""
    state = ctx.state
    ledger = ctx.ledger(response.id)
    ledger.complete = True
    if status == "cancelled":
        ledger.truncate(ledger.committed_ms if ctx.duplex or ledger.acked else ledger.elapsed_ms(ctx.now))
    elif status == "failed":
        ledger.commits_all = False
    item = _final_item(ctx, response, status)
    response_id, item_id = response.id, _item_id(response)
    if response.speaks:
        if response.has_audio or response.text:
            ctx.emit(AudioDone(event_id=ctx.event_id(), response_id=response_id, item_id=item_id))
            if response.text:
                ctx.emit(
                    TranscriptDone(
                        event_id=ctx.event_id(),
                        response_id=response_id,
                        item_id=item_id,
                        transcript=response.text,
                    )
                )
        _part_done(ctx, response, ContentPart(type="audio", transcript=response.text))
    if response.has_text_part:
        ctx.emit(TextDone(event_id=ctx.event_id(), response_id=response_id, item_id=item_id, text=response.text))
        _part_done(ctx, response, ContentPart(type="text", text=response.text))
    ctx.emit(OutputItemDone(event_id=ctx.event_id(), response_id=response.id, item=item))
    entry = state.item_of(item.id)
    if entry is not None:
        entry.item, entry.done = history.without_marks(item), True
    history.finish(ctx, item)
    state.response = None
    _count(state.totals, status, ledger.generated_ms)
    state.sound.drop_paced()
    state.turn_state = "idle"
    state.intake.overlap_speech_ms = 0.0
    state.intake.answer_due = False
    if response.announced:
        ctx.emit(_done(ctx, response, status, reason, item), reserved=True)
    ctx.emit(RateLimitsUpdated(event_id=ctx.event_id()))


def _count(totals: Totals, status: str, generated_ms: float) -> None:
    totals.responses += 1
    totals.cancelled += status == "cancelled"
    totals.failed += status == "failed"
    totals.output_ms += generated_ms


def _final_item(ctx: SessionContext, response: OpenResponse, status: str) -> Item:
    ledger = ctx.ledger(response.id)
    text = response.text if ledger.cap_ms < 0 else ledger.text_at(ledger.cap_ms)
    return assistant_item(
        response.id,
        status=status,
        transcript=text if response.speaks else None,
        text=response.text if response.has_text_part else None,
        audio_duration_ms=round(ledger.generated_ms) if response.has_audio else None,
        marks=ledger.text_marks(),
    )


def _done(ctx: SessionContext, response: OpenResponse, status: str, reason: str | None, item: Item) -> ResponseDone:
    details = None if reason is None else StatusDetails.of(status, reason)
    metadata = response.metadata
    if ctx.duplex:
        cursors = msgspec.to_builtins(ctx.ledger(response.id).cursors())
        ended = {"session_id": ctx.state.session_id, "epoch": ctx.state.epoch, "playback": cursors}
        metadata = {**(response.metadata or {}), "duplex_event": ended}
    return ResponseDone(
        event_id=ctx.event_id(),
        response=Response(
            id=response.id,
            status=status,
            status_details=details,
            output=(item,),
            modalities=response.modalities,
            metadata=metadata,
            usage=usage.of_response(ctx, response),
        ),
        response_id=response.id,
    )
