"""Turn detection of one session: what goes to the speech detector, and what its verdict does. SANS-I/O.

Rule 1. An append waits in the ordered input for its verdict, and what came right behind it is asked about in
        the same question; an append that completes no frame has its verdict at once.
Rule 2. The end of a turn commits it there and then: sound of the same append that lies behind it is the next.
Rule 3. Sound that is no speech is kept for as long as a turn may be dated back, so that a turn has its beginning.
Rule 4. A gap in the media counts as silence, by the clock, once the next append is overdue.
Rule 5. The end-of-turn model advises: unanswered, a pause lasts for its hard maximum.
"""

from __future__ import annotations

from collections.abc import Sequence

from duologue.protocol.duplex import (
    AppendAudio,
    AudioFormat,
    Commit,
    InputConverter,
    RealtimeProtocolError,
)
from duologue.session.core import appends, config, input_state, turns
from duologue.session.core.commands import Detected, TurnJudged
from duologue.session.core.context import SessionContext
from duologue.session.core.detection import (
    ASK_MS,
    FRAME,
    FRAME_BYTES,
    NEVER,
    RATE_HZ,
    UNAVAILABLE,
    WINDOW_MS,
    Verdict,
    follow,
)
from duologue.session.core.effects import Detect, JudgeTurn
from duologue.session.core.engine_session import Part, Waiting

_LOOK_AGAIN_S = 0.1


# -- questions --------------------------------------------------------------------------------------------


def completes_frame(ctx: SessionContext, pcm: bytes) -> bool:
    samples = len(pcm) // 4 * RATE_HZ // ctx.traits.input_rate_hz
    return len(ctx.state.detection.rest) + samples * 4 >= FRAME_BYTES


def question(ctx: SessionContext, ticket: int, sounds: Sequence[bytes]) -> Waiting:
    """Ask the detector about appends, in order, at the model's rate; what is sent answers to `ticket`."""
    known = ctx.state.detection
    pieces, resampler = [known.rest], known.resampler
    parts: list[Part] = []
    held = len(known.rest) // 4
    for pcm in sounds:
        piece, resampler = _at_16_khz(ctx, pcm, resampler)
        pieces.append(piece)
        frames, rest = divmod(held + len(piece) // 4, FRAME)
        parts.append(Part(frames, held))
        held = rest
    line = b"".join(pieces)
    whole = len(line) - held * 4
    ctx.effects.append(Detect(ticket, known.model, line[:whole]))
    return Waiting(parts, line[whole:], resampler)


def _at_16_khz(ctx: SessionContext, pcm: bytes, state: bytes) -> tuple[bytes, bytes]:
    rate = ctx.traits.input_rate_hz
    if rate == RATE_HZ:
        return pcm, b""
    converter = InputConverter(AudioFormat("pcm_f32le", rate), RATE_HZ)
    if state:
        converter.restore_state(state)
    return converter.convert(pcm).tobytes(), converter.export_state()


def answered(ctx: SessionContext, waiting: Waiting, fact: Detected) -> None:
    """Take the detector's state with its answer. A detector that has no room leaves the sound unjudged: it
    neither begins nor ends a turn; one that is gone ends turn detection."""
    known = ctx.state.detection
    known.rest, known.resampler = waiting.rest, waiting.resampler
    if not fact.error:
        known.model = fact.state
    elif fact.error != "detector_full":
        _switch_off(ctx)


def _switch_off(ctx: SessionContext) -> None:
    ctx.error(RealtimeProtocolError(UNAVAILABLE, "the speech detector has failed", param="session.turn_detection"))
    state = ctx.state
    config.put_in_force(ctx, state.config.updated({"turn_detection": None}))
    config.tell(ctx)


# -- verdicts ---------------------------------------------------------------------------------------------


def take_unjudged(ctx: SessionContext, command: AppendAudio, source: AudioFormat, pcm: bytes) -> None:
    """An append that completes no frame."""
    known = ctx.state.detection
    held = len(known.rest) // 4
    piece, known.resampler = _at_16_khz(ctx, pcm, known.resampler)
    known.rest += piece
    take(ctx, command, source, pcm, (), held)


def take(
    ctx: SessionContext,
    command: AppendAudio,
    source: AudioFormat,
    pcm: bytes,
    probabilities: Sequence[float],
    held: int,
) -> None:
    """Account for one append with the probabilities of the frames that it completed; `held` samples waited
    before it."""
    rules, intake, known = ctx.rules, ctx.state.intake, ctx.state.detection
    if rules is None:
        appends.take(ctx, command, source, pcm)
        return
    rate = ctx.traits.input_rate_hz
    start_ms, total_ms = intake.clock_ms, source.duration_ms(len(command.audio))
    cut, began_ms = 0, NEVER
    for change in follow(known, rules, probabilities, start_ms + (FRAME - held) * 1000 / RATE_HZ):
        if change.began:
            began_ms = change.at_ms
            continue
        end = min(max(round((change.at_ms - start_ms) * rate / 1000) * 4, cut), len(pcm))
        appends.place(ctx, command, pcm[cut:end], (end - cut) / 4 / rate * 1000, Verdict(True, began_ms))
        end_turn(ctx)
        command, cut, began_ms = _rest_of(command), end, NEVER
    if cut < len(pcm) or not cut:
        left_ms = start_ms + total_ms - intake.clock_ms
        appends.place(ctx, command, pcm[cut:], left_ms, Verdict(known.active or began_ms >= 0, began_ms))
    intake.clock_ms, intake.append_ms = start_ms + total_ms, total_ms
    known.heard_at = ctx.now
    _wait(ctx)


def _rest_of(command: AppendAudio) -> AppendAudio:
    """An append without what was used of it: its frames, its words, its wishes."""
    return AppendAudio(
        event_id=command.event_id, force_listen=command.force_listen, overlap_silence_rms=command.overlap_silence_rms
    )


def end_turn(ctx: SessionContext) -> None:
    """The turn is over at this point of the input. In an auto session the model answers by itself."""
    state, detection = ctx.state, ctx.state.config.turn_detection
    if ctx.auto or not state.intake.heard_speech or detection is None:
        input_state.speech_stopped(ctx, state.intake.clock_ms)
        return
    turns.commit(ctx, Commit(response_create=detection.create_response))
    state.detection.committed = True


# -- pauses -----------------------------------------------------------------------------------------------


def _wait(ctx: SessionContext) -> None:
    """Ask about a pause that is long enough, and set the time at which silence of the clock matters."""
    known, rules = ctx.state.detection, ctx.rules
    if rules is None or not known.active:
        known.gap_at = NEVER
        return
    if rules.asks and not known.asked and known.silence_ms >= ASK_MS:
        _ask(ctx)
    missing_ms = rules.patience.silence_ms(known.finished) - known.silence_ms
    if rules.asks and not known.asked:
        missing_ms = min(missing_ms, ASK_MS - known.silence_ms)
    known.gap_at = known.heard_at + (ctx.state.intake.append_ms + max(missing_ms, 0.0)) / 1000


def _ask(ctx: SessionContext) -> None:
    """Whether the turn so far sounds finished."""
    state = ctx.state
    rate = ctx.traits.input_rate_hz
    window = bytes(state.sound.buffer.pcm[-WINDOW_MS * rate // 1000 * 4 :])
    sound, _ = _at_16_khz(ctx, window, b"")
    state.intake.tickets += 1
    state.detection.asked = state.intake.tickets
    ctx.effects.append(JudgeTurn(state.detection.asked, sound))


def judged(ctx: SessionContext, fact: TurnJudged) -> None:
    """The end-of-turn model has answered; of a pause that is over, nobody wants to know."""
    known, rules = ctx.state.detection, ctx.rules
    if rules is None or fact.ticket != known.asked:
        ctx.stale("judgement")
        return
    if fact.error:
        return
    known.finished = fact.finished
    _wait(ctx)
    tick(ctx)


def tick(ctx: SessionContext) -> None:
    """The media has a gap, or a pause has become long enough."""
    known, rules, intake = ctx.state.detection, ctx.rules, ctx.state.intake
    if rules is None or not 0 <= known.gap_at:
        return
    gap_ms = max((ctx.now - known.heard_at) * 1000 - intake.append_ms, 0.0)
    silence_ms = known.silence_ms + gap_ms + 0.5  # the clock's own fractions
    enough = silence_ms >= rules.patience.silence_ms(known.finished)
    asks = rules.asks and not known.asked and silence_ms >= ASK_MS
    if not (enough or asks):
        return
    if intake.queue:
        known.gap_at = ctx.now + _LOOK_AGAIN_S  # what waits may be speech
    elif enough:
        known.quiet()
        end_turn(ctx)
    else:
        _ask(ctx)
        _wait(ctx)
