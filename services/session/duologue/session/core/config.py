"""`session.update`: all of a patch or nothing of it. SANS-I/O.

What a patch may not say at all the protocol refuses; here stands what depends on the session's life: a voice
that was heard, instructions that the model has been given, and what the model's plugin cannot do.
"""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import (
    DuplexCapabilities,
    Playback,
    RealtimeProtocolError,
    SessionConfig,
    SessionRuntimeView,
    SessionUpdate,
    SessionUpdated,
    changed,
    session_object,
)
from duologue.session.core.context import SessionContext
from duologue.session.core.detection import Detection, refusal, rules_for
from duologue.session.core.effects import ControlStage


def update(ctx: SessionContext, command: SessionUpdate) -> None:
    state = ctx.state
    old = state.config
    new = settled(old.updated(command.session))
    touched = changed(old, new)
    _check(ctx, old, new, touched)
    if touched:
        ctx.plugin.validate(new, old)
        _tell_stages(ctx, old, new)
        put_in_force(ctx, new)
        ctx.plugin.on_update(ctx.model, new)
    tell(ctx)


def check_speed(capabilities: DuplexCapabilities, speed: float | None, code: str, param: str) -> None:
    """Refuse a pace that the model's voice cannot take; its own is always accepted, as stock clients send it."""
    if speed not in (None, 1) and not capabilities.supports_output_speed:
        raise RealtimeProtocolError(code, "this model speaks at its own pace only", param=param)


def put_in_force(ctx: SessionContext, new: SessionConfig) -> None:
    """From here on the session is so configured. Another turn detection begins anew, amid what is being said."""
    state, rules = ctx.state, ctx.rules
    state.config = new
    ctx.configured(new)
    if ctx.rules != rules:
        state.detection = Detection(active=state.intake.speech_open, heard_at=ctx.now, floor_ms=state.intake.clock_ms)
        state.sound.preroll.clear()


def settled(config: SessionConfig) -> SessionConfig:
    """The config as a checkpoint gives it back (1 s is 1.0 s then), so that a heir echoes the same bytes."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=SessionConfig)


def _check(ctx: SessionContext, old: SessionConfig, new: SessionConfig, touched: frozenset[str]) -> None:
    if "model" in touched:
        raise RealtimeProtocolError("model_update_unsupported", "the model is fixed at open", param="session.model")
    if "voice" in touched and new.voice is not None and ctx.state.voiced:
        raise RealtimeProtocolError(
            "voice_update_after_audio_unsupported", "the voice has been heard already", param="session.voice"
        )
    if "instructions" in touched and ctx.state.locked and ctx.traits.locks_instructions:
        raise RealtimeProtocolError(
            "instructions_update_unsupported",
            "the model has been given its instructions already",
            param="session.instructions",
        )
    if "speed" in touched:
        check_speed(ctx.capabilities, new.speed, "unsupported", "session.speed")
    if "turn_detection" in touched and rules_for(new, plans=ctx.plans) is not None and new.turn_detection is not None:
        unserved = refusal(ctx.limits, new.turn_detection)
        if unserved is not None:
            raise unserved


def _tell_stages(ctx: SessionContext, old: SessionConfig, new: SessionConfig) -> None:
    """Stages whose own configuration is another now are told, ahead of the next unit."""
    before = ctx.plugin.stage_configs(old, ctx.model)
    after = ctx.plugin.stage_configs(new, ctx.model)
    for stage, (was, now) in enumerate(zip(before, after, strict=True)):
        if was != now:
            # Stages that are being given their context know of no later epoch than the one they were opened under.
            fence = ctx.state.rebuild.opened or ctx.state.fence
            ctx.effects.append(ControlStage(fence, stage, "update", now))


def tell(ctx: SessionContext) -> None:
    """`session.updated`: the whole effective session."""
    ctx.emit(SessionUpdated(event_id=ctx.event_id(), session=describe(ctx)))


def describe(ctx: SessionContext) -> dict[str, object]:
    """The session object in the session's dialect."""
    state = ctx.state
    ledger = state.ledgers.get(state.last_response_id)
    response = state.response
    view = SessionRuntimeView(
        id=state.session_id,
        state="closing" if state.life.closing else "open",
        turn_state=state.turn_state,
        epoch=state.epoch,
        turn_id=state.turn_id,
        active_response_id=None if response is None else response.id,
        active_response_turn_id=None if response is None else response.turn_id,
        playback=Playback() if ledger is None else ledger.cursors(),
        capabilities=ctx.capabilities,
        expires_at=int(state.opened_unix_s + state.config.max_session_s),
    )
    return session_object(state.config, view, ctx.dialect)


def session_json(ctx: SessionContext) -> bytes:
    return msgspec.json.encode(describe(ctx))
