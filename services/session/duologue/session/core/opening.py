"""How a session begins: from the first message's session object, or from a checkpoint. SANS-I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from duologue.model.plugin import DuplexModelPlugin
from duologue.protocol.duplex import Dialect, RealtimeProtocolError, SessionConfig
from duologue.protocol.duplex import SessionLimits as GrantedLimits
from duologue.session.core import adoption, history, stages
from duologue.session.core import config as session_config
from duologue.session.core.context import SessionContext
from duologue.session.core.detection import refusal
from duologue.session.core.engine_session import STATE_VERSION, DuplexEngineSession
from duologue.session.core.limits import SessionLimits


class _Versioned(msgspec.Struct):
    """What is read of a state before anything else."""

    version: int = 1


_version = msgspec.msgpack.Decoder(_Versioned)


def open_session(
    *,
    session_id: str,
    seed: bytes,
    owner: int,
    dialect: Dialect,
    model: str,
    plugin: DuplexModelPlugin[Any],
    limits: SessionLimits,
    request: dict[str, Any],
    opened_unix_s: float,
    max_sessions: int,
) -> SessionContext:
    """The context of a new session; stages are asked for and `session.updated` is its first event.

    Raises RealtimeProtocolError for what it cannot be opened with."""
    granted = GrantedLimits(
        idle_timeout_s=limits.idle_ttl_s,
        max_session_s=limits.max_session_s,
        disconnect_grace_s=limits.disconnect_grace_s,
        overflow_policy=limits.overflow_policy,
    )
    config = SessionConfig.open(
        _with_detection(request, dialect, plugin.traits.turn_detection),
        dialect=dialect,
        model=model,
        auto_default=plugin.traits.native_turns,
        limits=granted,
    )
    if plugin.traits.auto_only and not config.auto_response:
        raise RealtimeProtocolError(
            "unsupported_nemotron_duplex_mode",
            "this model serves auto-responding sessions only",
            param="session.extra_body.auto_response",
        )
    if plugin.traits.turn_only and config.auto_response:
        raise RealtimeProtocolError(
            "unsupported", "this model answers committed turns only", param="session.extra_body.auto_response"
        )
    config = session_config.settled(config)
    session_config.check_speed(plugin.capabilities(max_sessions), config.speed, "unsupported", "session.speed")
    plugin.validate(config, None)
    state = DuplexEngineSession(
        session_id=session_id,
        seed=seed,
        owner=owner,
        dialect=dialect,
        config=config,
        limits=limits,
        opened_unix_s=opened_unix_s,
        max_sessions=max_sessions,
    )
    ctx = SessionContext(state, plugin, plugin.new_state(config))
    history.seed_opening_text(ctx)
    unserved = None if ctx.rules is None or config.turn_detection is None else refusal(limits, config.turn_detection)
    if unserved is not None:
        session_config.put_in_force(ctx, config.updated({"turn_detection": None}))
    stages.open_stages(ctx)
    session_config.tell(ctx)
    if unserved is not None:
        ctx.error(unserved)
    return ctx


def _with_detection(request: dict[str, Any], dialect: Dialect, own: dict[str, Any] | None) -> dict[str, Any]:
    """The model's own turn detection where a duplex client says nothing about it, in either spelling."""
    audio = request.get("audio")
    hears = audio.get("input") if isinstance(audio, dict) else None
    told = "turn_detection" in request or (isinstance(hears, dict) and "turn_detection" in hears)
    return {**request, "turn_detection": own} if own and not told and dialect is Dialect.duplex else request


def restore_session(body: bytes, *, plugin: DuplexModelPlugin[Any], owner: int) -> SessionContext:
    """The context of a session from a snapshot or a checkpoint. Raises ValueError, msgspec.ValidationError of it."""
    try:
        return _restored(body, plugin, owner)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_newer(body: bytes) -> bool:
    """A newer version of this program wrote this state, and we cannot tell what it says. Raises msgspec.DecodeError."""
    return _version.decode(body).version > STATE_VERSION


def _restored(body: bytes, plugin: DuplexModelPlugin[Any], owner: int) -> SessionContext:
    if is_newer(body):
        raise ValueError("a newer version of this program wrote it")
    state = msgspec.msgpack.decode(body, type=DuplexEngineSession)
    state.version = STATE_VERSION
    if owner < state.owner:
        raise ValueError(f"owner {owner} is older than {state.owner}, which wrote this session")
    if owner > state.owner:
        adoption.inherit(state, state.owner)
    state.owner = owner
    kind: type[msgspec.Struct] = plugin.state_type
    model = msgspec.msgpack.decode(state.plugin_state, type=kind)
    return SessionContext(state, plugin, model)
