"""Appends of the ordered input that the speech detector looks at. SANS-I/O.

Rule 1. An append that completes no frame of the detector waits for nobody.
Rule 2. What is right behind an append that is asked about is asked about together with it.
"""

from __future__ import annotations

from duologue.fence import CommandNo
from duologue.protocol.duplex import AppendAudio, RealtimeProtocolError
from duologue.session.core import appends, conversions, input_queue, listening
from duologue.session.core.commands import Detected
from duologue.session.core.context import SessionContext
from duologue.session.core.engine_session import Queued


def ask(ctx: SessionContext, no: CommandNo | None, command: AppendAudio, queued: Queued | None) -> bool:
    """Have the speech detector look at an append, and at what came right behind it. Raises `bad_audio`."""
    intake = ctx.state.intake
    source = appends.source_format(ctx, command.format, command.sample_rate_hz)
    before = intake.ears_carry or ctx.ears.export()
    pcm = queued.pcm if queued is not None else None
    if pcm is None:
        pcm = conversions.sound(ctx, command, source, source.duration_ms(len(command.audio)))
    if not listening.completes_frame(ctx, pcm):
        intake.ears_carry = b""
        listening.take_unjudged(ctx, command, source, pcm)
        return True
    if queued is None:
        queued = input_queue.put_first(ctx, no, command)
    queued.pcm, intake.ears_carry = pcm, before
    sounds = [pcm]
    for behind in intake.queue[1:]:
        ahead = _heard_ahead(ctx, behind)
        if ahead is None:
            break
        sounds.append(ahead)
    intake.tickets += 1
    intake.offload = intake.tickets
    intake.waiting = listening.question(ctx, intake.offload, sounds)
    return False


def _heard_ahead(ctx: SessionContext, queued: Queued) -> bytes | None:
    """The sound of an append that waits, if it is its turn after those before; what is wrong with it is told
    when it is."""
    command = queued.command
    if queued.pcm is not None or not isinstance(command, AppendAudio):
        return queued.pcm
    source = appends.source_format(ctx, command.format, command.sample_rate_hz)
    ms = source.duration_ms(len(command.audio))
    if ms <= ctx.limits.inline_audio_ms:
        try:
            queued.pcm = conversions.sound(ctx, command, source, ms)
        except RealtimeProtocolError:
            return None
    return queued.pcm


def answered(ctx: SessionContext, fact: Detected) -> bool:
    """The speech detector has looked at the appends at the head of the queue. False: it was asked for others."""
    intake = ctx.state.intake
    waiting = intake.waiting
    if fact.ticket != intake.offload or waiting is None:
        ctx.stale("verdict")
        return False
    intake.offload, intake.waiting, intake.ears_carry = 0, None, b""
    listening.answered(ctx, waiting, fact)
    at = 0
    for part in waiting.parts:
        queued = input_queue.pop(ctx)
        command, pcm = queued.command, queued.pcm
        assert isinstance(command, AppendAudio) and pcm is not None, "only appends are asked about"
        source = appends.source_format(ctx, command.format, command.sample_rate_hz)
        listening.take(ctx, command, source, pcm, fact.probabilities[at : at + part.frames], part.held)
        at += part.frames
    return True
