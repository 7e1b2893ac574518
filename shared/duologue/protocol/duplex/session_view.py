"""The session object: the whole effective session, as each dialect tells it."""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex.events import Playback
from duologue.protocol.duplex.session import SessionConfig
from duologue.protocol.realtime.capabilities import DuplexCapabilities
from duologue.protocol.realtime.dialect import Dialect
from duologue.protocol.realtime.formats import OPENAI_FORMATS, AudioFormat
from duologue.protocol.realtime.json_types import JsonObject
from duologue.protocol.realtime.turn_detection import ServerVad

MAX_ECHOED_REF_AUDIO = 4096
"""A reference voice by URL is echoed; the sound itself would fill the output buffer at each update."""

_OPENAI_RATE_HZ = 24_000


class SessionRuntimeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What of a session is not configuration. The defaults are those of a session that has just opened."""

    id: str
    state: str = "open"
    turn_state: str = "idle"
    epoch: int = 0
    turn_id: int = 0
    active_request_id: str | None = None
    active_response_id: str | None = None
    active_response_turn_id: int | None = None
    playback: Playback = Playback()
    capabilities: DuplexCapabilities = DuplexCapabilities()
    expires_at: int = 0
    """Unix seconds."""


class SessionView(msgspec.Struct, frozen=True, gc=False):
    """What a projection needs of the session."""

    session_id: str
    config: SessionConfig


def session_object(config: SessionConfig, runtime: SessionRuntimeView, dialect: Dialect) -> JsonObject:
    """The `session` of `session.created`, `.updated` and `.resumed`."""
    if dialect is Dialect.openai:
        return _ga(config, runtime)
    if dialect is Dialect.openai_beta:
        return _beta(config, runtime)
    return _duplex(config, runtime)


def _lifetime(config: SessionConfig, runtime: SessionRuntimeView) -> JsonObject:
    return {
        "expires_at": runtime.expires_at,
        "idle_timeout_s": config.idle_timeout_s,
        "max_session_s": config.max_session_s,
        "disconnect_grace_s": config.disconnect_grace_s,
        "overflow_policy": config.overflow_policy,
    }


# -- duplex -----------------------------------------------------------------------------------------------


def _duplex(config: SessionConfig, runtime: SessionRuntimeView) -> JsonObject:
    told: JsonObject = {
        **_state(runtime),
        "model": config.model,
        "modalities": list(config.modalities),
        "instructions": config.instructions,
        "voice": config.voice,
        "response_format": config.response_format,
        "temperature": config.temperature,
        "max_tokens": config.max_output_tokens,
        "speed": config.speed,
        **_lifetime(config, runtime),
        "auto_response": config.auto_response,
        "overlap_policy": config.overlap_policy,
        "overlap_short_ack_ms": config.overlap_short_ack_ms,
        "overlap_barge_in_ms": config.overlap_barge_in_ms,
        "overlap_silence_rms": config.overlap_silence_rms,
        "playback_commit_policy": config.playback_commit_policy,
        "playback": msgspec.to_builtins(runtime.playback),
        "capabilities": runtime.capabilities.to_realtime(),
        **_shared_settings(config),
        "object": "realtime.session",
        "type": "realtime",
        "input_audio_format": config.input_format.name,
        "output_audio_format": config.output_format.name,
        "output_modalities": list(config.modalities),
        "audio": {
            "input": _duplex_format(config.input_format),
            "output": _duplex_format(config.output_format),
        },
        "turn_detection": _detection(config),
    }
    if config.ref_audio is not None and len(config.ref_audio) <= MAX_ECHOED_REF_AUDIO:
        told["ref_audio"] = config.ref_audio
    if config.initial_user_text is not None:
        told["initial_user_text"] = config.initial_user_text
    return {**config.extra, **told}


def _state(runtime: SessionRuntimeView) -> JsonObject:
    return {
        "id": runtime.id,
        "state": runtime.state,
        "turn_state": runtime.turn_state,
        "epoch": runtime.epoch,
        "turn_id": runtime.turn_id,
        "active_request_id": runtime.active_request_id,
        "active_response_id": runtime.active_response_id,
        "active_response_turn_id": runtime.active_response_turn_id,
    }


def _shared_settings(config: SessionConfig) -> JsonObject:
    return {
        "tools": None if config.tools is None else list(config.tools),
        "tool_choice": config.tool_choice,
        "metadata": config.metadata,
        "include": None if config.include is None else list(config.include),
        "prompt": config.prompt,
        "input_audio_transcription": config.transcription,
        "input_audio_noise_reduction": config.noise_reduction,
        "tracing": config.tracing,
    }


def _duplex_format(audio: AudioFormat) -> JsonObject:
    return {"format": audio.name, "sample_rate_hz": audio.rate}


def _detection(config: SessionConfig) -> JsonObject | None:
    if config.turn_detection is None:
        return None
    told: JsonObject = msgspec.to_builtins(config.turn_detection)
    return told


# -- OpenAI -----------------------------------------------------------------------------------------------


def _openai_detection(config: SessionConfig) -> JsonObject | None:
    """Without the one key that stock clients do not know, unless it was set."""
    told = _detection(config)
    if told is not None and told.get("min_speech_duration_ms") == ServerVad().min_speech_duration_ms:
        del told["min_speech_duration_ms"]
    return told


def ga_format(audio: AudioFormat) -> JsonObject:
    """A format object of the GA API. It knows one PCM rate; another is told beside it."""
    told: JsonObject = {"type": OPENAI_FORMATS[audio.name]}
    if audio.name != "pcm16":
        return told
    return told | {"rate" if audio.rate == _OPENAI_RATE_HZ else "sample_rate_hz": audio.rate}


def ga_modalities(modalities: tuple[str, ...]) -> list[str]:
    """GA has one or the other: audio output includes its transcript."""
    return ["audio"] if "audio" in modalities else ["text"]


def beta_modalities(modalities: tuple[str, ...]) -> list[str]:
    return ["audio", "text"] if "audio" in modalities else ["text"]


def _ga(config: SessionConfig, runtime: SessionRuntimeView) -> JsonObject:
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": runtime.id,
        "model": config.model,
        "output_modalities": ga_modalities(config.modalities),
        "instructions": config.instructions or "",
        "tools": list(config.tools or ()),
        "tool_choice": "auto" if config.tool_choice is None else config.tool_choice,
        "max_output_tokens": config.max_output_tokens or "inf",
        "tracing": config.tracing,
        "truncation": "auto" if config.truncation is None else config.truncation,
        "prompt": config.prompt,
        "include": None if config.include is None else list(config.include),
        "audio": {
            "input": {
                "format": ga_format(config.input_format),
                "transcription": config.transcription,
                "noise_reduction": config.noise_reduction,
                "turn_detection": _openai_detection(config),
            },
            "output": {
                "format": ga_format(config.output_format),
                "voice": config.voice,
                "speed": 1.0 if config.speed is None else config.speed,
            },
        },
        **_lifetime(config, runtime),
    }


def _beta(config: SessionConfig, runtime: SessionRuntimeView) -> JsonObject:
    return {
        "id": runtime.id,
        "object": "realtime.session",
        "model": config.model,
        "modalities": beta_modalities(config.modalities),
        "instructions": config.instructions or "",
        "voice": config.voice,
        "input_audio_format": config.input_format.name,
        "output_audio_format": config.output_format.name,
        "input_audio_transcription": config.transcription,
        "input_audio_noise_reduction": config.noise_reduction,
        "turn_detection": _openai_detection(config),
        "tools": list(config.tools or ()),
        "tool_choice": "auto" if config.tool_choice is None else config.tool_choice,
        "temperature": 0.8 if config.temperature is None else config.temperature,
        "max_response_output_tokens": config.max_output_tokens or "inf",
        "speed": 1.0 if config.speed is None else config.speed,
        "tracing": config.tracing,
        **_lifetime(config, runtime),
    }
