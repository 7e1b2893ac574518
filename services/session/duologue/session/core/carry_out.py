"""Each client command, carried out where it belongs. SANS-I/O.

Rule 1. A refusal is told and changes nothing.
Rule 2. Whether it is a command's turn is decided before (`intake`).
"""

from __future__ import annotations

from typing import assert_never

from duologue.protocol.duplex import (
    AckPlayback,
    AppendAudio,
    AppendText,
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
    conversions,
    input_queue,
    input_state,
    items,
    playback,
    resent,
    turn_signals,
    turns,
)
from duologue.session.core.context import SessionContext


def guarded(ctx: SessionContext, command: DuplexCommand) -> None:
    """Carry out one command; a refusal is told and changes nothing."""
    if ctx.state.echoes.told and resent.answered(ctx, command):
        return
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
                input_queue.drop_input(ctx)
            cancel.stop(ctx, command)
        case CreateResponse():
            turns.create_response(ctx, command)
        case CancelResponse():
            cancel.cancel_response(ctx, command)
        case ClearOutput():
            cancel.clear_output(ctx, command)
        case CreateItem():
            items.create(ctx, command, conversions.item_sound(ctx, command))
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
    ms = source.duration_ms(len(command.audio))
    appends.place(ctx, command, conversions.sound(ctx, command, source, ms), ms)
