"""What the model says, one result at a time, in the order that the contract gives. SANS-I/O.

    error, speech start and stop, interruption, user turn, tool calls, listen, text and audio, end of turn

Rule 1. Staleness was decided at the door. Of a turn that is over only leftovers can come (turn-based): ignored.
Rule 2. An auto session opens a response for what its model says unasked; elsewhere it must have been promised.
"""

from __future__ import annotations

from collections.abc import Sequence

from duologue.model.outputs import ModelOutput
from duologue.session.core import (
    cancel,
    closing,
    failures,
    input_state,
    overlap,
    pacing,
    responses,
    silence,
    stages,
    tools,
    turns,
    usage,
)
from duologue.session.core.commands import StageOutput
from duologue.session.core.context import SessionContext


def stage_output(ctx: SessionContext, out: StageOutput) -> None:
    """A relay between stages, or results for the session."""
    if out.to_stage >= 0:
        stages.relay(ctx, out)
    else:
        stages.consumed(ctx, out.unit)
        epoch = ctx.state.epoch
        for output in ctx.plugin.project(ctx.model, out.head, out.frames):
            if ctx.state.epoch == epoch:
                apply(ctx, output, out.frames, out.turn_id)
            else:
                ctx.stale("result")
        if ctx.state.epoch != epoch:
            stages.forget(ctx, out.unit)
            return
    if out.last and stages.landed(ctx, out):
        stages.pump(ctx)
        silence.expect(ctx)


def apply(ctx: SessionContext, output: ModelOutput, frames: Sequence[bytes], turn_id: int) -> None:
    state = ctx.state
    if output.rebind:
        state.rebuild.due = output.rebind
    if output.usage is not None:
        usage.count(ctx, output.usage)
    if output.error_code and output.fatal:
        failures.tell(ctx, output.error_code, output.error)
        closing.close(ctx, output.error_code, close_code=1013 if output.error_code == "resource_exhausted" else 1011)
        return
    if output.error_code:
        if ctx.plans and not output.end_of_turn:
            # Of the input, which goes on beside the answer: nothing was being said that could fail.
            failures.tell(ctx, output.error_code, output.error)
        else:
            failures.fail(ctx, output.error_code, output.error)
        return
    if output.speech_started_ms is not None:
        input_state.speech_started(ctx, output.speech_started_ms)
        state.intake.heard_speech = True
    if output.speech_stopped_ms is not None:
        input_state.speech_stopped(ctx, output.speech_stopped_ms)
    if output.interrupt:
        _interrupted(ctx, output.interrupt)
    if output.user_turn is not None:
        turns.user_turn(ctx, output.user_turn)
    for call in output.tool_calls:
        tools.called(ctx, call)
    if output.undecided or (not ctx.auto and not ctx.plans and turn_id < state.turn_id):
        return
    pcm = frames[0] if output.audio_rate_hz and frames else b""
    if pacing.applies(ctx, output):
        pacing.keep(ctx, output, pcm)
        release(ctx)
    else:
        _tell(ctx, output, pcm)


def release(ctx: SessionContext) -> None:
    """Tell what was said too early and is due now."""
    while (ready := pacing.take(ctx)) is not None:
        _tell(ctx, ready.output, ready.pcm)


def _tell(ctx: SessionContext, output: ModelOutput, pcm: bytes) -> None:
    if output.error_code:
        failures.fail(ctx, output.error_code, output.error)
        return
    if output.listen:
        _listened(ctx, output)
    elif output.text or output.audio_rate_hz:
        _said(ctx, output, pcm)
    if output.end_of_turn:
        _ended(ctx, output)


def _interrupted(ctx: SessionContext, reason: str) -> None:
    detection = ctx.state.config.turn_detection
    if (detection is not None and not detection.interrupt_response) or not ctx.busy():
        return
    ctx.observed.interrupted(ctx.now)
    overlap.tell_interruption(ctx, reason)
    cancel.interrupt(ctx, reason)


def _listened(ctx: SessionContext, output: ModelOutput) -> None:
    response = ctx.response
    if response is None:
        if ctx.auto:
            responses.listened(ctx, output.reason)
    elif response.promised and not response.spoke and not output.tool_calls:
        responses.listened(ctx, output.reason, response)
        responses.complete(ctx, response, None)
        turns.after_response(ctx, response)


def _said(ctx: SessionContext, output: ModelOutput, pcm: bytes) -> None:
    response = ctx.response
    if response is None:
        if not ctx.auto or ctx.plans:
            ctx.stale("speech")
            return
        ctx.observed.answered_unasked()
        response = responses.open_response(ctx, promised=False)
    responses.say(ctx, response, output, pcm)


def _ended(ctx: SessionContext, output: ModelOutput) -> None:
    response = ctx.response
    if response is not None:
        responses.complete(ctx, response)
        turns.after_response(ctx, response)
    elif ctx.auto and not ctx.plans and not output.tool_calls:
        responses.listened(ctx, "model_turn_completed_without_output")
        ctx.state.turn_id += 1
