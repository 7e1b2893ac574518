"""The sound of commands at the model's rate: short sound here, long sound by the executor. SANS-I/O.

Rule 1. An append goes on where the one before it ended; each part of an item is a stream of its own.
Rule 2. What is longer than `inline_audio_ms` would hold up the shard: it becomes an `Offload`.
"""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import AppendAudio, AudioFormat, CreateItem, DuplexCommand, RealtimeProtocolError
from duologue.session.core import appends
from duologue.session.core.commands import Offloaded
from duologue.session.core.context import SessionContext
from duologue.session.core.ears import Conversion, Converted, Ears


def sound(ctx: SessionContext, command: AppendAudio, source: AudioFormat, ms: float) -> bytes:
    """An append of `ms` at the model's rate. Raises RealtimeProtocolError."""
    appends.check(ctx, command, ms)
    return ctx.ears.hear(command.audio, source).tobytes() if command.audio else b""


def item_sound(ctx: SessionContext, command: CreateItem) -> bytes:
    """The sound of an item's audio parts, each a stream of its own."""
    sounds: list[bytes] = []
    for part in command.audio:
        source = appends.source_format(ctx, part.format, part.sample_rate_hz)
        appends.make_room(ctx, appends.model_bytes(ctx, len(part.audio), source))
        sounds.append(Ears(source, ctx.traits.input_rate_hz).hear(part.audio, source).tobytes())
    return b"".join(sounds)


def long_work(ctx: SessionContext, command: DuplexCommand) -> Conversion | None:
    """The work of a command whose sound is too long to convert here."""
    if isinstance(command, AppendAudio):
        source = appends.source_format(ctx, command.format, command.sample_rate_hz)
        ms = source.duration_ms(len(command.audio))
        if ms <= ctx.limits.inline_audio_ms:
            return None
        appends.check(ctx, command, ms)
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


def result_of(fact: Offloaded) -> Converted:
    """What the executor made of it. Raises RealtimeProtocolError if it made nothing."""
    if fact.error:
        raise _refusal(fact.error)
    return msgspec.msgpack.decode(fact.result, type=Converted)


def _refusal(error: str) -> RealtimeProtocolError:
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
