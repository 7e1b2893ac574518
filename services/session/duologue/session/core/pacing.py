"""Pacing: how far ahead of real time a response is told. SANS-I/O.

Rule 1. Only where the pipeline asks for it (`max_output_lead_ms`) and only for sound. What the model made too
        early is kept in order, the end of the turn included: a response is open for as long as it is made or
        waits here, so that an interruption cancels it.
Rule 2. A client hears from the first sound that was written, without pause. Before that one is written nothing
        goes beyond the lead.
Rule 3. Whatever ends the response drops what waits. More than `max_paced_bytes` goes ahead of its time: then
        the limits of the output buffer decide.
"""

from __future__ import annotations

from duologue.model.outputs import ModelOutput
from duologue.session.core.context import SessionContext
from duologue.session.core.engine_session import Paced

NEVER = float("inf")


def applies(ctx: SessionContext, output: ModelOutput) -> bool:
    """Whether this output has to wait for its time, or behind what does."""
    if ctx.lead_ms <= 0:
        return False
    response = ctx.response
    says = bool(output.text) or output.audio_rate_hz > 0 or output.end_of_turn
    return says and response is not None and response.speaks


def keep(ctx: SessionContext, output: ModelOutput, pcm: bytes) -> None:
    sound = ctx.state.sound
    sound.paced.append(Paced(output, pcm))
    sound.paced_bytes += len(pcm)


def waits(ctx: SessionContext) -> bool:
    """Whether anything is kept for its time."""
    return bool(ctx.state.sound.paced)


def take(ctx: SessionContext) -> Paced | None:
    """The oldest output if its time has come; it is not kept any more."""
    sound = ctx.state.sound
    if not sound.paced:
        return None
    if ctx.now < due_at(ctx):
        if sound.paced_bytes <= ctx.limits.max_paced_bytes:
            return None
        ctx.observed.unpaced += 1
    ready = sound.paced.pop(0)
    sound.paced_bytes -= len(ready.pcm)
    return ready


def due_at(ctx: SessionContext) -> float:
    """When the oldest output that waits may be told; NEVER: not before something else happens."""
    sound, response = ctx.state.sound, ctx.response
    if not sound.paced or response is None:
        return NEVER
    ledger, oldest = ctx.ledger(response.id), sound.paced[0]
    rate_hz = oldest.output.audio_rate_hz
    length_ms = len(oldest.pcm) / 2 / rate_hz * 1000 if rate_hz else 0.0
    ahead_ms = ledger.generated_ms + length_ms - ctx.lead_ms
    if ahead_ms <= 0 or ledger.generated_ms <= 0:
        return 0.0
    return NEVER if ledger.first_sent_at < 0 else ledger.first_sent_at + ahead_ms / 1000
