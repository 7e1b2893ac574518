"""Speech that overlaps a response: one table decides, first match wins. SANS-I/O.

Evaluated only while a response is made or played, for every append of a turn-based session, and in an auto
session for a model that can be interrupted if the policy or the append itself asks for barge-in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from duologue.protocol.duplex import AppendAudio, OverlapDecision
from duologue.session.core.context import SessionContext

Action = Literal["barge_in", "listen", "drop"]

BARGE_WORDS = ("barge_in", "interrupt", "cancel")
LISTEN_WORDS = ("listen", "continue", "continue_output", "ack")
DROP_WORDS = ("drop", "ignore", "silence")

BACK_CHANNELS = frozenset(
    "嗯 嗯嗯 对 对的 好 好的 继续 继续说 可以 是的".split()
    + "yes yeah yep ok okay continue goon right keepgoing pleasecontinue".split()
)
"""Letters and digits only, lower case."""


class Situation(NamedTuple):
    """What a decision rests on."""

    auto: bool
    policy: str
    can_barge_in: bool
    asks: str
    force_barge_in: bool
    force_listen: bool
    speech: bool
    frames_alone: bool
    back_channel: bool
    vad_started: bool | None
    duration_ms: float
    overlap_ms: float
    """Speech over this response so far, this append included where it counts."""
    short_ack_ms: float
    barge_in_ms: float


class Row(NamedTuple):
    when: Callable[[Situation], bool]
    action: Action
    reason: str
    keep: Callable[[Situation], bool]
    """Whether the audio goes into the buffer."""
    counts: bool = False
    resets: bool = False
    force_listen: bool = False
    cancel_reason: str = ""


def _always(s: Situation) -> bool:
    return True


def _never(s: Situation) -> bool:
    return False


def _speech(s: Situation) -> bool:
    return s.speech


def _on_speech(s: Situation) -> bool:
    return s.policy == "barge_in_on_speech"


def _sustained(s: Situation) -> bool:
    return s.policy == "barge_in_on_sustained_speech"


TABLE: tuple[Row, ...] = (
    Row(
        lambda s: s.asks in BARGE_WORDS,
        "barge_in",
        "client_overlap_action",
        _always,
        cancel_reason="barge_in",
    ),
    Row(
        lambda s: s.asks in LISTEN_WORDS,
        "listen",
        "client_overlap_action",
        lambda s: s.auto or (s.asks == "listen" and s.speech and s.duration_ms > s.short_ack_ms),
        resets=True,
    ),
    Row(lambda s: s.asks in DROP_WORDS, "drop", "client_overlap_action", _never, resets=True),
    Row(lambda s: s.force_barge_in, "barge_in", "client_force_barge_in", _always, cancel_reason="barge_in"),
    Row(
        lambda s: s.auto and s.speech and _on_speech(s) and s.vad_started is True,
        "barge_in",
        "server_vad_speech_started",
        _always,
        cancel_reason="turn_detected",
    ),
    Row(
        lambda s: s.auto and s.speech and _on_speech(s) and s.vad_started is None,
        "barge_in",
        "barge_in_on_speech",
        _always,
        cancel_reason="barge_in",
    ),
    Row(lambda s: s.auto and not (s.speech and _sustained(s)), "listen", "auto_response_continuous", _always),
    Row(lambda s: s.force_listen, "listen", "client_force_listen", _speech, resets=True),
    Row(lambda s: not s.speech and s.frames_alone, "listen", "vision_follow", _always),
    Row(lambda s: not s.speech, "drop", "silence_or_noise", _never),
    Row(lambda s: s.back_channel, "listen", "short_ack_transcript", lambda s: s.auto, resets=True),
    Row(lambda s: s.policy == "listen_only", "listen", "policy_listen_only", _always, counts=True),
    Row(lambda s: _on_speech(s) and not s.can_barge_in, "listen", "barge_in_unsupported", _always),
    Row(
        lambda s: _on_speech(s) and s.vad_started is False,
        "listen",
        "server_vad_utterance_active",
        _always,
        force_listen=True,
    ),
    Row(
        lambda s: _on_speech(s) and s.vad_started is True,
        "barge_in",
        "server_vad_speech_started",
        _always,
        cancel_reason="turn_detected",
    ),
    Row(_on_speech, "barge_in", "policy_barge_in_on_speech", _always, cancel_reason="barge_in"),
    Row(
        lambda s: s.duration_ms <= s.short_ack_ms and s.overlap_ms <= s.short_ack_ms,
        "listen",
        "short_ack",
        _always,
        counts=True,
    ),
    Row(
        lambda s: s.overlap_ms >= s.barge_in_ms and not s.can_barge_in,
        "listen",
        "barge_in_unsupported",
        _always,
        counts=True,
    ),
    Row(
        lambda s: s.overlap_ms >= s.barge_in_ms,
        "barge_in",
        "long_overlap_speech",
        _always,
        counts=True,
        cancel_reason="barge_in",
    ),
    Row(_always, "listen", "accumulating_overlap_speech", _always, counts=True),
)


def asks_for_barge_in(command: AppendAudio) -> bool:
    return command.force_barge_in or command.overlap_action in BARGE_WORDS


def applies(ctx: SessionContext, command: AppendAudio) -> bool:
    """Whether this append is subject to a decision. A model that plans its answers hears on while it speaks
    and decides itself; only an explicit wish is decided here."""
    if not ctx.busy():
        return False
    if not ctx.auto:
        return True
    if not ctx.capabilities.supports_barge_in:
        return False
    listens = ctx.plans or ctx.state.config.overlap_policy == "listen_only"
    return asks_for_barge_in(command) or not listens


def is_back_channel(*hints: str | None) -> bool:
    words = ("".join(c for c in hint.lower() if c.isalnum()) for hint in hints if hint)
    return any(word in BACK_CHANNELS for word in words)


def decide(
    ctx: SessionContext,
    command: AppendAudio,
    *,
    speech: bool,
    duration_ms: float,
    vad_started: bool | None = None,
) -> tuple[Row, bool]:
    """Take the decision, count and tell it: the row, and whether the audio is kept."""
    state = ctx.state
    config, intake = state.config, state.intake
    overlap_ms = intake.overlap_speech_ms + (duration_ms if speech else 0)
    situation = Situation(
        auto=ctx.auto,
        policy=config.overlap_policy,
        can_barge_in=ctx.capabilities.supports_barge_in,
        asks=command.overlap_action or "",
        force_barge_in=command.force_barge_in,
        force_listen=command.force_listen,
        speech=speech,
        frames_alone=bool(command.video_frames) and "audio" not in ctx.capabilities.required_input_modalities,
        back_channel=is_back_channel(command.transcript, command.text),
        vad_started=vad_started,
        duration_ms=duration_ms,
        overlap_ms=overlap_ms,
        short_ack_ms=config.overlap_short_ack_ms,
        barge_in_ms=config.overlap_barge_in_ms,
    )
    row = next(row for row in TABLE if row.when(situation))
    if row.resets:
        intake.overlap_speech_ms = 0.0
    elif row.counts:
        intake.overlap_speech_ms = overlap_ms
    kept = row.keep(situation)
    _tell(ctx, row, kept, duration_ms)
    return row, kept


def tell_interruption(ctx: SessionContext, reason: str) -> None:
    """The model itself heard an interruption."""
    _tell(ctx, Row(_always, "barge_in", "model_interrupt", _always, cancel_reason=reason), True, 0)


def _tell(ctx: SessionContext, row: Row, kept: bool, duration_ms: float) -> None:
    state = ctx.state
    told: dict[str, Any] = {
        "type": "overlap.decision",
        "session_id": state.session_id,
        "epoch": state.epoch,
        "policy": state.config.overlap_policy,
        "action": row.action,
        "reason": row.reason,
        "duration_ms": round(duration_ms),
        "overlap_speech_ms": round(state.intake.overlap_speech_ms),
        "buffer_audio": kept,
    }
    if row.force_listen:
        told["force_listen"] = True
    if row.cancel_reason:
        told["cancel_reason"] = row.cancel_reason
    ctx.emit(
        OverlapDecision(
            event_id=ctx.event_id(),
            session_id=state.session_id,
            epoch=state.epoch,
            policy=state.config.overlap_policy,
            action=row.action,
            reason=row.reason,
            metadata=told,
        ),
        structural=False,
    )
