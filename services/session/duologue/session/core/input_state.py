"""What was heard since the last commit, and how it is forgotten. SANS-I/O."""

from __future__ import annotations

from duologue.protocol.duplex import SpeechStarted, SpeechStopped
from duologue.session.core.context import SessionContext
from duologue.session.core.engine_session import Sound


def speech_started(ctx: SessionContext, at_ms: float) -> None:
    """Announce the item that the speech will become, once for each turn."""
    intake = ctx.state.intake
    if intake.speech_open:
        return
    if not intake.speech_item:
        intake.speech_item = ctx.state.echoes.speech(at_ms) or ctx.item_id()
    intake.speech_open = True
    ctx.observed.speech_started(intake.clock_ms - at_ms)
    ctx.emit(SpeechStarted(event_id=ctx.event_id(), audio_start_ms=max(round(at_ms), 0), item_id=intake.speech_item))


def speech_stopped(ctx: SessionContext, at_ms: float) -> None:
    intake = ctx.state.intake
    if not intake.speech_open:
        return
    intake.speech_open = False
    ctx.emit(SpeechStopped(event_id=ctx.event_id(), audio_end_ms=max(round(at_ms), 0), item_id=intake.speech_item))


def forget_speech(ctx: SessionContext) -> None:
    """The speech was no turn: say that it ended, and use its item for nothing."""
    speech_stopped(ctx, ctx.state.intake.clock_ms)
    ctx.state.intake.speech_item = ""


def reset_turn(ctx: SessionContext) -> None:
    """A turn was committed (or was nothing): the next speech announces itself again."""
    intake = ctx.state.intake
    ctx.observed.turn_over()
    intake.speech_item = ""
    intake.speech_open = False
    intake.heard_speech = intake.heard_silence = False
    intake.hints = []
    if ctx.rules is not None:
        ctx.state.detection.begin(intake.clock_ms)
        ctx.state.sound.preroll.clear()


def take_unheard(ctx: SessionContext) -> None:
    """A client commits by itself: what the detector did not take for speech is its turn, if it is loud."""
    sound, intake = ctx.state.sound, ctx.state.intake
    if not intake.heard_speech and any(segment.is_speech for segment in sound.preroll.segments):
        sound.buffer.join(sound.preroll.take_all())
        intake.heard_speech = True


def clear(ctx: SessionContext) -> None:
    """Forget all input that no stage has been given, its flags included."""
    state = ctx.state
    sound, intake = state.sound, state.intake
    sound.feed.clear()
    sound.buffer.clear()
    sound.retained.clear()
    state.detection.rest = b""
    ctx.observed.input_dropped()
    ctx.ears.reset()
    reset_turn(ctx)
    intake.overlap_speech_ms = 0.0
    intake.deferred = intake.deferred_response = intake.answer_after = False
    state.turn_state = "idle"


def sound_bytes(ctx: SessionContext) -> int:
    """The same without what waits for its turn in the queue."""
    return input_bytes(ctx) - ctx.state.intake.queue_bytes


def input_bytes(ctx: SessionContext) -> int:
    """All sound that is held for this session, and camera frames, under way included."""
    sound = ctx.state.sound
    held = len(sound.feed.pcm) + len(sound.buffer.pcm) + len(sound.retained.pcm)
    held += len(sound.preroll.pcm)
    if sound.sees:
        held += _frame_bytes(sound)
    return held + sound.flight_bytes + ctx.state.intake.queue_bytes


def _frame_bytes(sound: Sound) -> int:
    buffers = (sound.feed, sound.buffer, sound.retained, sound.preroll)
    held = sum(len(frame) for one in buffers for segment in one.segments for frame in segment.video_frames)
    return held + sum(len(frame) for flight in sound.flights.values() for frame in flight.video_frames)
