"""The session object that an upstream server is sent, in its dialect. SANS-I/O.

Rule 1. Only what is set is said: a key that a server does not know would be refused.
Rule 2. An update says what changed, whole by its first key: servers merge deeply, and a part may be required whole.
"""

from __future__ import annotations

from typing import Any

from duologue.models.bridge.heads import SlotConfig
from duologue.models.bridge.options import Options

JsonObject = dict[str, Any]
_FIXED = ("model", "extra_body", "auto_response", "initial_user_text", "ref_audio")


def session_object(config: SlotConfig, options: Options, *, ours: bool) -> JsonObject:
    """For the first `session.update`. `ours`: that server knows the extensions of this one."""
    build = _duplex if options.dialect == "duplex" else _openai
    return build(config, options, ours)


def changes(before: JsonObject, after: JsonObject, options: Options) -> JsonObject:
    """What a later `session.update` says; empty: nothing. Null switches off what was set."""
    told: JsonObject = {}
    for key in {**before, **after}:
        if key not in _FIXED and before.get(key) != after.get(key):
            told[key] = after.get(key)
    if told and options.dialect == "openai":
        told["type"] = "realtime"
    return told


def _duplex(config: SlotConfig, options: Options, ours: bool) -> JsonObject:
    told: JsonObject = {
        "modalities": list(config.modalities),
        "input_audio_format": "pcm16",
        "output_audio_format": "pcm16",
        "sample_rate_hz": options.heard_rate_hz,
        "audio": {
            "input": {"sample_rate_hz": options.heard_rate_hz},
            "output": {"sample_rate_hz": options.output_rate_hz},
        },
        "turn_detection": options.turn_detection if config.auto else None,
        "extra_body": {**config.extra_body, "auto_response": config.auto},
    }
    optional = {
        "model": options.model or None,
        "instructions": config.instructions,
        "voice": config.voice,
        "ref_audio": config.ref_audio,
        "initial_user_text": config.initial_user_text,
        "temperature": config.temperature,
        "max_response_output_tokens": config.max_output_tokens,
        "speed": config.speed,
        "tools": None if config.tools is None else list(config.tools),
        "tool_choice": config.tool_choice,
    }
    return told | {key: value for key, value in optional.items() if value is not None}


def _openai(config: SlotConfig, options: Options, ours: bool) -> JsonObject:
    hears: JsonObject = {
        "format": {"type": "audio/pcm", "rate": options.heard_rate_hz},
        "turn_detection": options.turn_detection if config.auto else None,
    }
    if config.transcription is not None:
        hears["transcription"] = config.transcription
    speaks: JsonObject = {"format": {"type": "audio/pcm", "rate": options.output_rate_hz}}
    if config.voice is not None:
        speaks["voice"] = config.voice
    if config.speed is not None and options.speed:
        speaks["speed"] = config.speed
    told: JsonObject = {
        "type": "realtime",
        "output_modalities": ["audio"] if "audio" in config.modalities else ["text"],
        "audio": {"input": hears, "output": speaks},
    }
    extra = {**config.extra_body, "auto_response": config.auto} if ours else config.extra_body
    optional = {
        "model": options.model or None,
        "instructions": config.instructions,
        "max_output_tokens": config.max_output_tokens,
        "tools": None if config.tools is None else list(config.tools),
        "tool_choice": config.tool_choice,
        "extra_body": extra or None,
    }
    return told | {key: value for key, value in optional.items() if value is not None}
