"""User turns: how they are committed, deferred, promoted and answered. SANS-I/O.

Rule 1. Every commit has an item of its own and the whole fan-out: [speech_stopped] added, created, committed,
        [transcription] done.
Rule 2. A turn that is committed while a response is made or played waits; it keeps its own intent, and is
        promoted when that response ends or its audio has passed, whichever comes first.
"""

from __future__ import annotations

from typing import Any

from duologue.model.outputs import UserTurn
from duologue.model.plugin import ResponseRequest
from duologue.protocol.duplex import (
    Commit,
    ContentPart,
    CreateResponse,
    InputCommitted,
    Item,
    RealtimeProtocolError,
    ResponseOptions,
    TranscriptionCompleted,
    message_item,
)
from duologue.session.core import config, history, input_state, responses, silence, stages, tools
from duologue.session.core.context import SessionContext
from duologue.session.core.engine_session import HistoryItem, OpenResponse, SoundBuffer

# -- commit -----------------------------------------------------------------------------------------------


def commit(ctx: SessionContext, command: Commit) -> None:
    """`input_audio_buffer.commit`. Raises `input_audio_buffer_empty`."""
    intake = ctx.state.intake
    if not intake.heard_speech and ctx.rules is not None:
        input_state.take_unheard(ctx)
    if not intake.heard_speech:
        if ctx.state.detection.committed and not ctx.duplex:
            intake.heard_silence = False  # the detector was faster: clients of these dialects take no error
            return
        if not intake.heard_silence:
            raise RealtimeProtocolError("input_audio_buffer_empty", "there is no audio to commit")
        _commit_silence(ctx)
        return
    wanted = ctx.auto if command.response_create is None else command.response_create
    busy = not ctx.auto and ctx.busy()
    if busy and 0 < intake.overlap_speech_ms <= ctx.state.config.overlap_short_ack_ms:
        _commit_short_ack(ctx)
        return
    defer = busy and (ctx.response is not None or intake.overlap_speech_ms > 0)
    extra = {"overlap_deferred": True, "response_create_deferred": wanted} if defer else {}
    hints = " ".join(intake.hints)
    transcript = hints or ctx.plugin.on_commit(ctx.model)
    give_up_calls(ctx)
    item_id = _fan_out(ctx, transcript, extra, ctx.state.echoes.turn())
    ctx.observed.turn_ended(ctx.now)
    if ctx.auto:
        _flush(ctx, item_id, transcript)
        return
    retain(ctx, ctx.state.sound.buffer.take_all(), item_id, transcript)
    if defer:
        intake.deferred, intake.deferred_response = True, wanted
        intake.overlap_speech_ms = 0.0
        return
    wanted = wanted or intake.deferred_response
    intake.deferred = intake.deferred_response = False
    if wanted:
        answer(ctx)


def _fan_out(ctx: SessionContext, transcript: str | None, extra: dict[str, Any], again: str = "") -> str:
    """`again`: the item under which an owner before us told it."""
    state = ctx.state
    intake = state.intake
    input_state.speech_stopped(ctx, intake.clock_ms)
    item = message_item(
        again or _item_id(ctx),
        "user",
        ContentPart(type="input_audio", transcript=transcript),
    )
    history.place(ctx, HistoryItem(item))
    told = {"type": "input.committed", "session_id": state.session_id, "turn_id": state.turn_id}
    told |= {"epoch": state.epoch, "history_len": len(state.history), "native_audio": True, **extra}
    announce_commit(ctx, item, told, transcript)
    state.turn_state = "user_committed"
    input_state.reset_turn(ctx)
    return item.id


def _item_id(ctx: SessionContext) -> str:
    """The one that the speech of this turn announced, unless an owner before us has told a turn under it."""
    state = ctx.state
    announced = state.intake.speech_item
    used = bool(state.echoes.told) and state.item_of(announced) is not None and not state.echoes.names(announced)
    return ctx.item_id() if used or not announced else announced


def announce_commit(ctx: SessionContext, item: Item, told: dict[str, Any], transcript: str | None) -> None:
    previous = history.announce(ctx, item)
    ctx.emit(InputCommitted(event_id=ctx.event_id(), previous_item_id=previous, item_id=item.id, event=told))
    if transcript:
        transcribed(ctx, item.id, transcript)
    history.finish(ctx, item)


def transcribed(ctx: SessionContext, item_id: str, transcript: str) -> None:
    ctx.emit(TranscriptionCompleted(event_id=ctx.event_id(), item_id=item_id, transcript=transcript))


def _commit_nothing(ctx: SessionContext, **more: bool) -> None:
    """A commit that is no turn: an item of its own without words, and nothing for the model."""
    state = ctx.state
    item_id = state.echoes.turn() or _item_id(ctx)
    part = ContentPart(type="input_audio", transcript="", is_speech=False)
    item = message_item(item_id, "user", part)
    history.place(ctx, HistoryItem(item, in_context=False))
    told = {"type": "input.committed", "session_id": state.session_id, "turn_id": state.turn_id}
    told |= {"epoch": state.epoch, "empty": True, "is_speech": False, "no_response": True, **more}
    announce_commit(ctx, item, told, None)
    input_state.reset_turn(ctx)


def _commit_silence(ctx: SessionContext) -> None:
    """In an auto session the model itself says that it listens, once a unit of the silence is whole."""
    _commit_nothing(ctx)
    if not ctx.auto:
        responses.listened(ctx, "silence_or_noise")


def _commit_short_ack(ctx: SessionContext) -> None:
    ctx.state.sound.buffer.clear()
    input_state.speech_stopped(ctx, ctx.state.intake.clock_ms)
    ctx.state.intake.overlap_speech_ms = 0.0
    _commit_nothing(ctx, overlap_ack=True)


def _flush(ctx: SessionContext, item_id: str, transcript: str | None) -> None:
    """An auto session's commit: what is left of the turn goes as its final unit."""
    feed = ctx.state.sound.feed
    if feed.segments:
        stages.pad(feed, ctx.unit_bytes)
        feed.segments[-1].final = True
    if ctx.plans and transcript is None:
        ctx.state.intake.awaiting.append(item_id)
    stages.pump(ctx)


def retain(ctx: SessionContext, sound: SoundBuffer, item_id: str, transcript: str | None) -> None:
    """Keep a committed turn. A model that plans hears it at once: it owes the transcript."""
    if sound.segments:
        stages.pad(sound, ctx.unit_bytes)
        sound.segments[-1].final = True
    if not ctx.plans:
        for earlier in ctx.state.sound.retained.segments:
            earlier.final = False
        ctx.state.sound.retained.join(sound)
        return
    ctx.state.intake.unanswered += 1
    if sound.segments and transcript is None:
        ctx.state.intake.awaiting.append(item_id)
    ctx.state.sound.feed.join(sound)
    stages.pump(ctx)


# -- answers ----------------------------------------------------------------------------------------------


def create_response(ctx: SessionContext, command: CreateResponse) -> None:
    """`response.create`. Raises RealtimeProtocolError before anything starts."""
    intake = ctx.state.intake
    if ctx.response is not None:
        raise RealtimeProtocolError("response_already_active", "a response is still open")
    options = command.options
    config.check_speed(ctx.capabilities, options.speed, "unsupported_native_response_options", "response.speed")
    ctx.plugin.check_options(responses.given(options), ctx.state.config)
    if not ctx.state.sound.retained.segments:
        if not intake.unanswered:
            raise RealtimeProtocolError("response_create_without_input", "there is no input to answer")
        if not ctx.plans and not ctx.capabilities.supports_text_only_turn:
            raise RealtimeProtocolError("text_only_turn_unsupported", "this model cannot answer text alone")
    intake.deferred = intake.deferred_response = False
    ctx.observed.turn_ended(ctx.now)
    answer(ctx, options)


def answer(ctx: SessionContext, options: ResponseOptions | None = None) -> None:
    """Open the promised response of a turn and give the turn to the model."""
    state = ctx.state
    state.intake.answer_after = False
    if was_answered(ctx):
        return
    ctx.observed.answered(ctx.now)
    ctx.plugin.on_turn_start(ctx.model, state.turn_id, state.epoch)
    responses.open_response(ctx, promised=True, options=options)
    if ctx.plans:
        state.intake.answer_due = True
        plan_if_due(ctx)
        return
    state.intake.unanswered = 0
    state.sound.feed.join(state.sound.retained.take_all())
    stages.pump(ctx)
    silence.expect(ctx)


def was_answered(ctx: SessionContext) -> bool:
    """An owner before us told the answer to what is to be answered now: it is not made again."""
    state = ctx.state
    if not state.echoes.answers or not state.echoes.answered(ctx.now):
        return False
    intake = state.intake
    intake.deferred = intake.deferred_response = intake.answer_due = False
    intake.unanswered = intake.results = 0
    state.sound.retained.clear()
    return True


def give_up_calls(ctx: SessionContext) -> None:
    """The user goes on: nobody waits for the results that are missing, the answer that did included."""
    tools.settle_open(ctx, "late")
    plan_if_due(ctx)


def plan_if_due(ctx: SessionContext) -> None:
    """Make the open response that waited for the conversation, once nothing of that is missing."""
    intake, response = ctx.state.intake, ctx.response
    if intake.answer_due and response is not None and not intake.awaiting and not tools.half_answered(ctx):
        intake.answer_due = False
        _plan(ctx, response)


def _plan(ctx: SessionContext, response: OpenResponse) -> None:
    """Have the plugin make a response from the conversation."""
    state = ctx.state
    state.intake.unanswered = state.intake.results = 0
    instructions = response.options.get("instructions") or state.config.instructions
    request = ResponseRequest(
        items=history.conversation(ctx),
        instructions=None if instructions is None else str(instructions),
        turn_id=state.turn_id,
        epoch=state.epoch,
        options=dict(response.options),
        config=state.config,
    )
    stages.submit_plan(ctx, ctx.plugin.plan_response(ctx.model, request))


def user_turn(ctx: SessionContext, turn: UserTurn) -> None:
    """The model says that the user's turn is over, and what was said."""
    intake = ctx.state.intake
    if intake.awaiting:
        _owed(ctx, intake.awaiting.pop(0), turn)
        return
    if not ctx.auto:
        return
    if not turn.transcript and not turn.answer:
        input_state.speech_stopped(ctx, turn.end_ms)
        input_state.reset_turn(ctx)
        return
    if not intake.speech_item:
        input_state.speech_started(ctx, turn.start_ms)
    input_state.speech_stopped(ctx, turn.end_ms)
    give_up_calls(ctx)
    _fan_out(ctx, turn.transcript, {})
    ctx.observed.turn_ended_in_input(intake.clock_ms - turn.end_ms)
    if turn.answer:
        _answer_if_free(ctx)
    else:
        intake.unanswered += 1


def _owed(ctx: SessionContext, item_id: str, turn: UserTurn) -> None:
    """The transcript of a turn that the client committed."""
    entry = ctx.state.item_of(item_id)
    if entry is not None:
        entry.item = history.with_transcript(entry.item, turn.transcript)
    transcribed(ctx, item_id, turn.transcript)
    intake, response = ctx.state.intake, ctx.response
    if intake.answer_due and response is not None:
        if intake.awaiting:
            return
        if turn.transcript or intake.results:
            plan_if_due(ctx)
        else:
            intake.answer_due = False
            responses.listened(ctx, "silence_or_noise", response)
            responses.complete(ctx, response, None)
            after_response(ctx, response)
    elif ctx.auto and turn.answer:
        _answer_if_free(ctx)


def _answer_if_free(ctx: SessionContext) -> None:
    detection = ctx.state.config.turn_detection
    if detection is not None and not detection.create_response:
        ctx.state.intake.unanswered += 1
    elif ctx.response is None:
        answer(ctx)
    else:
        ctx.state.intake.answer_after = True


# -- after a response -------------------------------------------------------------------------------------


def after_response(ctx: SessionContext, response: OpenResponse) -> None:
    """A response has ended by itself: what waited for that goes on."""
    if not ctx.auto and not ctx.plans:
        ctx.state.sound.feed.clear()
    tools.flush(ctx, response)
    go_on(ctx)


def go_on(ctx: SessionContext) -> None:
    """Nothing is being said: whoever waited for that is answered."""
    if ctx.state.intake.answer_after:
        ctx.observed.turn_ended(ctx.now)
        answer(ctx)
    else:
        promote(ctx)


def promote(ctx: SessionContext) -> None:
    """Take up the deferred turn, if there is one and no response is open."""
    intake = ctx.state.intake
    if not intake.deferred or ctx.response is not None:
        return
    wanted = intake.deferred_response
    intake.deferred = intake.deferred_response = False
    if wanted:
        ctx.observed.turn_ended(ctx.now)
        answer(ctx)


def drop_deferred(ctx: SessionContext) -> None:
    """The turn that waits to be answered is given up."""
    intake = ctx.state.intake
    intake.deferred = intake.deferred_response = intake.answer_after = False
    ctx.state.sound.retained.clear()
    if ctx.plans:
        intake.unanswered = 0


def keep_deferred(ctx: SessionContext) -> None:
    """Speech interrupted the response that a turn waited for: the turn joins the one being spoken."""
    ctx.state.intake.deferred = False
