"""The ordered input: commands that must keep their order wait here for a conversion; the others do not. SANS-I/O.

Rule 1. Append, commit, clear, item commands, `response.create` and every update form one queue. It waits only
        while a long payload is converted elsewhere, while the speech detector looks at an append, and while
        more than half of what the output may hold is not delivered (appends of an auto session go on: sound is
        live, and what the model says is not an answer to one command).
Rule 2. Cancel, barge-in, close, acknowledgement and heartbeat never wait for it; `input.cancel` and `barge_in`
        drop from it the input that was sent before them.
Rule 3. A command is applied once: numbers at or below what was applied are ignored.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from duologue.fence import CommandNo
from duologue.protocol.duplex import (
    AckPlayback,
    AppendAudio,
    AppendText,
    AudioFormat,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearInput,
    ClearOutput,
    Commit,
    CreateItem,
    CreateResponse,
    DeleteItem,
    DuplexCommand,
    InputCleared,
    RealtimeProtocolError,
    RetrieveItem,
    SessionClose,
    SessionEventAck,
    SessionHeartbeat,
    SessionHeartbeatAck,
    SessionResume,
    SessionUpdate,
    TruncateItem,
    TurnSignal,
)
from duologue.session.core import (
    appends,
    cancel,
    closing,
    config,
    input_state,
    items,
    listening,
    pictures,
    playback,
    turn_signals,
    turns,
)
from duologue.session.core.commands import Detected, FromClient, InputRefused, Offloaded
from duologue.session.core.context import SessionContext
from duologue.session.core.ears import Conversion, Converted, Ears
from duologue.session.core.effects import Offload
from duologue.session.core.engine_session import Applied, Queued

_PREEMPTS = (
    CancelResponse,
    CancelInput,
    BargeIn,
    ClearOutput,
    SessionClose,
    AckPlayback,
    SessionHeartbeat,
    SessionEventAck,
    SessionResume,
    TurnSignal,
)
_INPUT = (AppendAudio, Commit, ClearInput)


def from_client(ctx: SessionContext, fact: FromClient) -> None:
    """Take one command: apply it now, or queue it."""
    state = ctx.state
    no, queue = fact.no, state.intake.queue
    if no <= state.applied.no or (queue and _known(ctx, no)):
        ctx.stale("command")
        return
    state.life.active_at = ctx.now
    state.outbox.dirty = True
    command = fact.command
    if (queue or _must_wait(ctx, no, command)) and not isinstance(command, _PREEMPTS):
        _queue(ctx, Queued(no, command, _cost(ctx, command)))
        _drain(ctx)  # after a fault of ours nothing is under way that would
    elif queue:
        state.ahead.append(Applied(no, command.event_id))
        _guarded(ctx, command)
        _drain(ctx)
    else:
        before = state.applied
        state.applied = Applied(no, command.event_id or before.event_id, before.audio_end_ms)
        if not _begin(ctx, no, command):
            state.applied = before
    if not state.intake.queue:
        _catch_up(ctx)


def _must_wait(ctx: SessionContext, no: CommandNo | None, command: DuplexCommand) -> bool:
    """There is hardly room for what the command would tell; what is delivered makes some."""
    state = ctx.state
    if not state.outbox.crowded(ctx.limits) or (ctx.auto and isinstance(command, AppendAudio)):
        return False
    return no is None or no > state.intake.released


def resume(ctx: SessionContext) -> None:
    """There is room in the output again, perhaps."""
    if ctx.state.intake.queue and not ctx.state.life.closing:
        _drain(ctx)
        if not ctx.state.intake.queue:
            _catch_up(ctx)


def release(ctx: SessionContext) -> None:
    """Nothing is delivered until an attachment is served, and it waits for what was sent before it."""
    intake = ctx.state.intake
    numbers = [queued.no for queued in intake.queue if queued.no is not None]
    if numbers:
        intake.released = max(numbers)
        resume(ctx)


def _known(ctx: SessionContext, no: CommandNo) -> bool:
    """While something waits: the number is in the queue, or was carried out before its turn."""
    state = ctx.state
    applied = any(no == one.no for one in state.ahead)
    newest = next((queued.no for queued in reversed(state.intake.queue) if queued.no is not None), None)
    return applied or (newest is not None and no <= newest)


def refused(ctx: SessionContext, fact: InputRefused) -> None:
    """Tell what the manager turned away, in the order of the input."""
    state, numbered = ctx.state, fact.no != CommandNo()
    if numbered and (fact.no <= state.applied.no or (state.intake.queue and _known(ctx, fact.no))):
        ctx.stale("command")
        return
    state.outbox.dirty = True
    if state.intake.queue:
        state.intake.queue.append(Queued(fact.no if numbered else None, None, refusal=fact))
        return
    _refuse(ctx, fact)
    if numbered:
        state.applied = Applied(fact.no, fact.event_id or state.applied.event_id, state.applied.audio_end_ms)


def _refuse(ctx: SessionContext, fact: InputRefused) -> None:
    after = fact.retry_after_ms if fact.retryable else None
    error = RealtimeProtocolError(
        fact.code, fact.message, param=fact.param, retryable=fact.retryable, retry_after_ms=after
    )
    ctx.error(error, fact.event_id)


# -- the queue --------------------------------------------------------------------------------------------


def _queue(ctx: SessionContext, queued: Queued) -> None:
    """Behind what waits; what there is no room for is refused when its turn comes."""
    intake = ctx.state.intake
    if input_state.input_bytes(ctx) + queued.cost > ctx.limits.max_pending_input_bytes:
        full = appends.no_room(ctx, queued.cost)
        after, event_id = full.retry_after_ms or 0, None if queued.command is None else queued.command.event_id
        refusal = InputRefused(event_id, full.code, full.message, after, param=full.param, retryable=full.retryable)
        queued = Queued(queued.no, None, refusal=refusal)
    intake.queue.append(queued)
    intake.queue_bytes += queued.cost


def _cost(ctx: SessionContext, command: DuplexCommand) -> int:
    if isinstance(command, AppendAudio):
        source = appends.source_format(ctx, command.format, command.sample_rate_hz)
        return appends.model_bytes(ctx, len(command.audio), source) + command.video_bytes
    if isinstance(command, CreateItem):
        return sum(
            appends.model_bytes(ctx, len(part.audio), appends.source_format(ctx, part.format, part.sample_rate_hz))
            for part in command.audio
        ) + pictures.size(command.item)
    return 0


def _begin(ctx: SessionContext, no: CommandNo | None, command: DuplexCommand, queued: Queued | None = None) -> bool:
    """Carry a command out, or send its sound to be converted or judged and wait; true when it is done."""
    try:
        work = _conversion(ctx, command) if queued is None or queued.pcm is None else None
        if work is None and ctx.rules is not None and isinstance(command, AppendAudio):
            return _judge(ctx, no, command, queued)
    except RealtimeProtocolError as error:
        ctx.error(error, command.event_id)
        return True
    if work is None:
        _guarded(ctx, command)
        return True
    intake = ctx.state.intake
    intake.tickets += 1
    intake.offload = intake.tickets
    if not intake.queue:
        queued = Queued(no, command, _cost(ctx, command))
        intake.queue.append(queued)
        intake.queue_bytes += queued.cost
    ctx.effects.append(Offload(intake.offload, "convert", msgspec.msgpack.encode(work)))
    return False


def _judge(ctx: SessionContext, no: CommandNo | None, command: AppendAudio, queued: Queued | None) -> bool:
    """Have the speech detector look at an append, and at what came right behind it. Raises `bad_audio`."""
    intake = ctx.state.intake
    source = appends.source_format(ctx, command.format, command.sample_rate_hz)
    before = intake.ears_carry or ctx.ears.export()
    pcm = queued.pcm if queued is not None else None
    if pcm is None:
        pcm = _sound(ctx, command, source)
    if not listening.completes_frame(ctx, pcm):
        intake.ears_carry = b""
        listening.take_unjudged(ctx, command, source, pcm)
        return True
    if queued is None:
        queued = Queued(no, command, _cost(ctx, command))
        intake.queue.append(queued)
        intake.queue_bytes += queued.cost
    queued.pcm, intake.ears_carry = pcm, before
    sounds = [pcm]
    for behind in intake.queue[1:]:
        ahead = _converted_ahead(ctx, behind)
        if ahead is None:
            break
        sounds.append(ahead)
    intake.tickets += 1
    intake.offload = intake.tickets
    intake.waiting = listening.question(ctx, intake.offload, sounds)
    return False


def _converted_ahead(ctx: SessionContext, queued: Queued) -> bytes | None:
    """The sound of an append that waits, if it is its turn after those before; what is wrong with it is told
    when it is."""
    command = queued.command
    if queued.pcm is not None or not isinstance(command, AppendAudio):
        return queued.pcm
    source = appends.source_format(ctx, command.format, command.sample_rate_hz)
    if _is_short(ctx, command, source):
        try:
            queued.pcm = _sound(ctx, command, source)
        except RealtimeProtocolError:
            return None
    return queued.pcm


def detected(ctx: SessionContext, fact: Detected) -> None:
    """The speech detector has looked at the appends at the head of the queue."""
    intake = ctx.state.intake
    waiting = intake.waiting
    if fact.ticket != intake.offload or waiting is None:
        ctx.stale("verdict")
        return
    intake.offload, intake.waiting, intake.ears_carry = 0, None, b""
    listening.answered(ctx, waiting, fact)
    at = 0
    for part in waiting.parts:
        queued = _pop(ctx)
        command, pcm = queued.command, queued.pcm
        assert isinstance(command, AppendAudio) and pcm is not None, "only appends are asked about"
        source = appends.source_format(ctx, command.format, command.sample_rate_hz)
        listening.take(ctx, command, source, pcm, fact.probabilities[at : at + part.frames], part.held)
        at += part.frames
    _drain(ctx)
    if not intake.queue:
        _catch_up(ctx)


def _is_short(ctx: SessionContext, command: AppendAudio, source: AudioFormat) -> bool:
    """Its sound is converted here."""
    return source.duration_ms(len(command.audio)) <= ctx.limits.inline_audio_ms


def _conversion(ctx: SessionContext, command: DuplexCommand) -> Conversion | None:
    """The work of a command whose sound is too long to convert here."""
    if isinstance(command, AppendAudio):
        source = appends.source_format(ctx, command.format, command.sample_rate_hz)
        if _is_short(ctx, command, source):
            return None
        appends.check(ctx, command, source)
        ctx.ears.hear(b"", source)
        return Conversion(ctx.traits.input_rate_hz, ((source, command.audio),), ctx.ears.export())
    if isinstance(command, CreateItem) and command.audio:
        payloads = tuple(
            (appends.source_format(ctx, part.format, part.sample_rate_hz), part.audio) for part in command.audio
        )
        if sum(source.duration_ms(len(audio)) for source, audio in payloads) > ctx.limits.inline_audio_ms:
            appends.make_room(ctx, sum(appends.model_bytes(ctx, len(audio), source) for source, audio in payloads))
            return Conversion(ctx.traits.input_rate_hz, payloads)
    return None


def offloaded(ctx: SessionContext, fact: Offloaded) -> None:
    """A conversion came back: its command is carried out, and the queue goes on."""
    intake = ctx.state.intake
    if fact.ticket != intake.offload or not intake.queue:
        ctx.stale("offload")
        return
    intake.offload = 0
    head = intake.queue[0]
    if ctx.rules is not None and isinstance(head.command, AppendAudio) and not fact.error:
        done = msgspec.msgpack.decode(fact.result, type=Converted)
        head.pcm, intake.ears_carry = b"".join(done.sounds), ctx.ears.export()
        ctx.ears.take_up(done.carry)
    else:
        _converted(ctx, fact)
    _drain(ctx)
    if not intake.queue:
        _catch_up(ctx)


def _converted(ctx: SessionContext, fact: Offloaded) -> None:
    """Carry out the command at the head of the queue with its converted sound."""
    queued = _pop(ctx)
    command = queued.command
    try:
        if fact.error:
            raise _offload_refusal(fact.error)
        done = msgspec.msgpack.decode(fact.result, type=Converted)
        if isinstance(command, AppendAudio):
            ctx.ears.take_up(done.carry)
            source = appends.source_format(ctx, command.format, command.sample_rate_hz)
            appends.take(ctx, command, source, b"".join(done.sounds))
        elif isinstance(command, CreateItem):
            items.create(ctx, command, b"".join(done.sounds))
    except RealtimeProtocolError as error:
        ctx.error(error, None if command is None else command.event_id)


def _offload_refusal(error: str) -> RealtimeProtocolError:
    """The executor had no room, failed, or says what is wrong with the sound."""
    if error == "offload_full":
        return RealtimeProtocolError(
            "input_backpressure",
            "too much input is being converted",
            param="audio",
            retry_after_ms=appends.RETRY_AFTER_MS,
        )
    if error.startswith("offload_"):
        return RealtimeProtocolError("internal_error", "the sound could not be converted")
    return RealtimeProtocolError("bad_audio", error, param="audio")


def _pop(ctx: SessionContext) -> Queued:
    """The head of the queue, as applied from here on."""
    state = ctx.state
    queued = state.intake.queue.pop(0)
    state.intake.queue_bytes -= queued.cost
    state.outbox.dirty = True  # a checkpoint made while it waited does not contain it
    if queued.no is not None:
        told = queued.refusal or queued.command
        event_id = None if told is None else told.event_id
        state.applied = Applied(queued.no, event_id or state.applied.event_id, state.applied.audio_end_ms)
    return queued


def _drain(ctx: SessionContext) -> None:
    """Carry out what waited, up to the next one that has to be converted elsewhere."""
    intake = ctx.state.intake
    while intake.queue and not intake.offload:
        head = intake.queue[0]
        if head.refusal is not None:
            _refuse(ctx, head.refusal)
            _pop(ctx)
        elif head.command is not None:
            if head.pcm is None and _must_wait(ctx, head.no, head.command):
                break
            cost, head.cost = head.cost, 0
            intake.queue_bytes -= cost
            if _begin(ctx, head.no, head.command, head):
                if intake.queue and intake.queue[0] is head:
                    _pop(ctx)
            else:
                head.cost = cost
                intake.queue_bytes += cost


def _catch_up(ctx: SessionContext) -> None:
    """Nothing waits: what was applied before its turn is in order now."""
    state = ctx.state
    for one in sorted(state.ahead, key=lambda one: one.no):
        if one.no > state.applied.no:
            state.applied = Applied(one.no, one.event_id or state.applied.event_id, state.applied.audio_end_ms)
    state.ahead = []
    if round(state.intake.clock_ms) != state.applied.audio_end_ms:
        state.applied = Applied(state.applied.no, state.applied.event_id, round(state.intake.clock_ms))


def drop_input(ctx: SessionContext) -> None:
    """`input.cancel` and `barge_in` undo the input that was sent before them."""
    intake = ctx.state.intake
    if not intake.queue:
        return
    if isinstance(intake.queue[0].command, _INPUT):
        intake.offload, intake.waiting, intake.ears_carry = 0, None, b""
    kept: list[Queued] = []
    for queued in intake.queue:
        if not isinstance(queued.command, _INPUT):
            kept.append(queued)
            continue
        intake.queue_bytes -= queued.cost
        if queued.no is not None:
            ctx.state.ahead.append(Applied(queued.no, queued.command.event_id))
    intake.queue = kept


# -- carrying out -----------------------------------------------------------------------------------------


def _guarded(ctx: SessionContext, command: DuplexCommand) -> None:
    """Carry out one command; a refusal is told and changes nothing."""
    try:
        carry_out(ctx, command)
    except RealtimeProtocolError as error:
        ctx.error(error, command.event_id)


def carry_out(ctx: SessionContext, command: DuplexCommand) -> None:
    match command:
        case AppendAudio():
            _append(ctx, command)
        case AckPlayback():
            playback.acknowledge(ctx, command)
        case SessionHeartbeat():
            ctx.emit(SessionHeartbeatAck(event_id=ctx.event_id(), session_id=ctx.state.session_id))
        case SessionEventAck():
            pass  # the gateway trims the journal; here it only keeps the lease
        case Commit():
            turns.commit(ctx, command)
        case ClearInput():
            input_state.clear(ctx)
            ctx.emit(InputCleared(event_id=ctx.event_id()))
        case CancelInput() | BargeIn():
            if isinstance(command, CancelInput) or ctx.capabilities.supports_barge_in:
                drop_input(ctx)
            cancel.stop(ctx, command)
        case CreateResponse():
            turns.create_response(ctx, command)
        case CancelResponse():
            cancel.cancel_response(ctx, command)
        case ClearOutput():
            cancel.clear_output(ctx, command)
        case CreateItem():
            items.create(ctx, command, _item_sound(ctx, command))
        case RetrieveItem():
            items.retrieve(ctx, command)
        case DeleteItem():
            items.delete(ctx, command)
        case TruncateItem():
            playback.truncate(ctx, command)
        case SessionUpdate():
            config.update(ctx, command)
        case TurnSignal():
            turn_signals.signal(ctx, command)
        case SessionClose():
            closing.close(ctx, command.reason)
        case AppendText():
            ctx.state.turn_state = "user_speaking"
            raise RealtimeProtocolError(
                "native_text_append_unsupported", "send text as a conversation item", param="type"
            )
        case SessionResume():
            raise RealtimeProtocolError(
                "unsupported_session_resume",
                "a resume must be the first message of a connection",
                param="type",
            )
        case _:
            assert_never(command)


def _append(ctx: SessionContext, command: AppendAudio) -> None:
    source = appends.source_format(ctx, command.format, command.sample_rate_hz)
    appends.take(ctx, command, source, _sound(ctx, command, source))


def _sound(ctx: SessionContext, command: AppendAudio, source: AudioFormat) -> bytes:
    """An append at the model's rate. Raises RealtimeProtocolError."""
    appends.check(ctx, command, source)
    return ctx.ears.hear(command.audio, source).tobytes() if command.audio else b""


def _item_sound(ctx: SessionContext, command: CreateItem) -> bytes:
    """The sound of an item's audio parts, each a stream of its own."""
    sounds: list[bytes] = []
    for part in command.audio:
        source = appends.source_format(ctx, part.format, part.sample_rate_hz)
        appends.make_room(ctx, appends.model_bytes(ctx, len(part.audio), source))
        sounds.append(Ears(source, ctx.traits.input_rate_hz).hear(part.audio, source).tobytes())
    return b"".join(sounds)
