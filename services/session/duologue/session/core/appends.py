"""One append of audio: resolved in command order, judged, and put where it belongs. SANS-I/O."""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import AppendAudio, AudioFormat, Dialect, RealtimeProtocolError, resolve_rate
from duologue.session.core import cancel, input_age, input_state, overlap, responses, silence, stages, turns
from duologue.session.core.context import SessionContext
from duologue.session.core.detection import FRAME_MS, Verdict
from duologue.session.core.ears import loudness
from duologue.session.core.engine_session import Segment

OPENAI_RATE_HZ, DUPLEX_RATE_HZ = 24_000, 16_000
RETRY_AFTER_MS = 500
UNHEARD_MS = 2000.0
"""How much of what the speech detector does not take for speech a commit may still take."""


def source_format(ctx: SessionContext, name: str | None, rate: int | None) -> AudioFormat:
    """The format of a payload: what it says of itself, else what the session has by now."""
    current = ctx.state.config.input_format
    if (name is None or name == current.name) and (rate is None or rate == current.rate):
        return current
    default = DUPLEX_RATE_HZ if ctx.dialect is Dialect.duplex else OPENAI_RATE_HZ
    name = current.name if name is None else name
    return AudioFormat(name, resolve_rate(name, rate, current, default))


def model_bytes(ctx: SessionContext, size: int, source: AudioFormat) -> int:
    """What so many bytes of a format are at the model's rate."""
    return model_bytes_of(ctx, source.duration_ms(size))


def model_bytes_of(ctx: SessionContext, ms: float) -> int:
    """What so much sound is at the model's rate."""
    return round(ms * ctx.traits.input_rate_hz / 1000) * 4


def check(ctx: SessionContext, command: AppendAudio, ms: float) -> None:
    """Refuse what the model does not take, and what there is no room for, of `ms` of sound. Raises
    RealtimeProtocolError."""
    required, frames = ctx.capabilities.required_input_modalities, command.video_frames
    refusal = ""
    if command.audio and "audio" not in ctx.takes:
        refusal = "This duplex model does not accept audio input"
    elif frames and "video" not in ctx.takes:
        refusal = "This duplex model does not accept video_frames"
    elif frames and not command.audio and "audio" in required:
        refusal = "This duplex model requires audio on input_audio_buffer.append"
    elif not frames and "video" in required:
        refusal = "This duplex model requires video_frames on input_audio_buffer.append"
    if refusal:
        raise RealtimeProtocolError("invalid_input_modality", refusal)
    size = model_bytes_of(ctx, ms)
    if frames:
        size += sum(map(len, frames))
    make_room(ctx, size)
    input_age.check(ctx)


def make_room(ctx: SessionContext, size: int) -> None:
    if input_state.input_bytes(ctx) + size > ctx.limits.max_pending_input_bytes:
        raise no_room(ctx, size)


def no_room(ctx: SessionContext, size: int) -> RealtimeProtocolError:
    """Of sound that there is no room for: what alone is more than the limit need not be sent again."""
    if size > ctx.limits.max_pending_input_bytes:
        return RealtimeProtocolError(
            "input_backpressure", "this alone exceeds the input limit", param="audio", retryable=False
        )
    return RealtimeProtocolError(
        "input_backpressure", "pending input exceeds server limit", param="audio", retry_after_ms=RETRY_AFTER_MS
    )


def take(ctx: SessionContext, command: AppendAudio, source: AudioFormat, pcm: bytes) -> None:
    """Account for one append, whose audio is `pcm` at the model's rate now."""
    place(ctx, command, pcm, source.duration_ms(len(command.audio)))


def place(ctx: SessionContext, command: AppendAudio, pcm: bytes, ms: float, verdict: Verdict | None = None) -> None:
    """Put `ms` of sound where it belongs. `verdict`: what the speech detector says of it, if it was asked."""
    state = ctx.state
    intake = state.intake
    start_ms = intake.clock_ms
    intake.clock_ms += ms
    intake.append_ms = ms
    speech = _is_speech(ctx, command, pcm) if verdict is None else verdict.speech
    ctx.observed.heard(ctx.now, ms, speech=speech)
    if not ctx.capabilities.supports_barge_in and overlap.asks_for_barge_in(command):
        ctx.error(
            RealtimeProtocolError("barge_in_unsupported", "this model cannot be interrupted"),
            command.event_id,
        )
        command = _without_barge_in(command)
    hint = command.transcript or command.text
    if hint and (not intake.hints or intake.hints[-1] != hint):
        intake.hints.append(hint)
    owned = ctx.auto and ctx.plans  # the model itself tells when speech starts and stops
    if verdict is not None and verdict.began:
        _announce(ctx, verdict.began_ms)
    elif speech and not owned:
        input_state.speech_started(ctx, start_ms if command.audio_start_ms is None else command.audio_start_ms)
    began = None if verdict is None else verdict.began
    state.sound.sees |= bool(command.video_frames)
    segment = Segment(len(pcm), start_ms, speech, command.force_listen, video_frames=command.video_frames)
    if overlap.applies(ctx, command):
        duration_ms = ms if command.duration_ms is None else command.duration_ms
        row, kept = overlap.decide(ctx, command, speech=speech, duration_ms=duration_ms, vad_started=began)
        if not kept:
            intake.heard_silence = True
            if verdict is not None and not speech:
                _keep_before_speech(ctx, command, pcm, segment)
            if not ctx.state.sound.buffer.segments:
                input_state.forget_speech(ctx)
            return
        if row.action == "barge_in":
            turns.keep_deferred(ctx)
            ctx.observed.interrupted(ctx.now)
            cancel.interrupt(ctx, row.cancel_reason)
        segment.force_listen |= row.force_listen
    elif not ctx.auto and not speech and not (command.video_frames and not command.audio):
        _decline(ctx)
        if not intake.speech_open:
            if verdict is not None:
                _keep_before_speech(ctx, command, pcm, segment)
            return
    if verdict is not None:
        speech = _with_its_beginning(ctx, command, pcm, start_ms, verdict)
    intake.heard_speech |= speech
    intake.heard_silence |= not speech
    state.turn_state = "user_speaking" if state.response is None else state.turn_state
    _buffer(ctx, pcm, segment)


def _decline(ctx: SessionContext) -> None:
    """Silence that nothing waits for is told append by append. A pause inside a turn stays in its audio."""
    ctx.state.intake.heard_silence = True
    if ctx.state.config.turn_detection is None:
        responses.listened(ctx, "silence_or_noise")


def _announce(ctx: SessionContext, began_ms: float) -> None:
    """The speech detector is sure now of speech that began earlier."""
    input_state.speech_started(ctx, began_ms)
    ctx.observed.speech_started(ctx.state.intake.clock_ms - ctx.state.detection.voiced_at)


def _keep_before_speech(ctx: SessionContext, command: AppendAudio, pcm: bytes, segment: Segment) -> None:
    """Sound that is no speech yet: kept for as long as a turn may be dated back, and `UNHEARD_MS` at least, for
    a client that commits what the detector does not hear. Loud or not is told with it."""
    preroll, rate = ctx.state.sound.preroll, ctx.traits.input_rate_hz
    segment.is_speech = _is_speech(ctx, command, pcm)
    preroll.push(pcm, segment)
    assert ctx.rules is not None, "a verdict is given under rules"
    kept_ms = max(ctx.rules.padding_ms + ctx.rules.min_speech_ms + 2 * FRAME_MS, UNHEARD_MS)
    excess = len(preroll.pcm) - round(kept_ms * rate / 1000) * 4
    if excess > 0:
        stages.cut(preroll, excess, rate)


def _with_its_beginning(
    ctx: SessionContext, command: AppendAudio, pcm: bytes, start_ms: float, verdict: Verdict
) -> bool:
    """Speech that has just begun brings what was kept from before. Whether something was heard that a commit
    of the client takes."""
    if ctx.auto:
        return verdict.speech or _is_speech(ctx, command, pcm)
    sound, rate = ctx.state.sound, ctx.traits.input_rate_hz
    if verdict.began and sound.preroll.segments:
        wanted = max(round((start_ms - verdict.began_ms) * rate / 1000), 0) * 4
        excess = len(sound.preroll.pcm) - wanted
        if excess > 0:
            stages.cut(sound.preroll, excess, rate)
        sound.buffer.join(sound.preroll.take_all())
    return verdict.speech


def _buffer(ctx: SessionContext, pcm: bytes, segment: Segment) -> None:
    sound = ctx.state.sound
    if not pcm and not segment.video_frames:
        return
    if not ctx.auto:
        sound.buffer.push(pcm, segment)
        return
    sound.feed.push(pcm, segment)
    silence.heard_input(ctx)
    stages.pump(ctx)
    input_age.note(ctx)
    rest = len(sound.feed.pcm) % ctx.unit_bytes
    if rest < len(pcm):  # this append made a unit whole
        at_ms = ctx.state.intake.clock_ms - rest / 4 / ctx.traits.input_rate_hz * 1000
        ctx.observed.unit_complete(at_ms, ctx.now)
    silence.expect(ctx)  # less than a unit goes nowhere by itself


def _is_speech(ctx: SessionContext, command: AppendAudio, pcm: bytes) -> bool:
    hinted = command.hinted_speech()
    if hinted is not None:
        return hinted
    return loudness(pcm) >= command.silence_rms(ctx.state.config.overlap_silence_rms)


def _without_barge_in(command: AppendAudio) -> AppendAudio:
    asks = None if command.overlap_action in overlap.BARGE_WORDS else command.overlap_action
    return msgspec.structs.replace(command, force_barge_in=False, overlap_action=asks)
