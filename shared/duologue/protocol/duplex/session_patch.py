"""Reading a session object: every spelling of section 5 of the contract, folded into field changes.

A patch holds only what was named. `None` is what the client wrote as null. Nothing here knows the session
that it will be merged into; that is `session.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.formats import check_rate, read_format
from duologue.protocol.realtime.json_types import JsonObject
from duologue.protocol.realtime.limits import check_numbers, read_max_tokens, read_speed
from duologue.protocol.realtime.strict import read

MAX_EXTRA_BYTES = 64 * 1024
"""Bound of the unknown keys that a session keeps and echoes."""
MAX_EXTRA_BODY_BYTES = 8 * 1024 * 1024
"""Bound of what a model's plugin is given, reference voices included."""

_Amount = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] | Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)]
_Period = Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000)] | Annotated[float, msgspec.Meta(gt=0, le=1_000_000_000)]
_Maybe = UnsetType | None


class _InputPatch(msgspec.Struct, kw_only=True):
    format: str | JsonObject | _Maybe = UNSET
    sample_rate_hz: int | float | _Maybe = UNSET
    sample_rate: int | float | _Maybe = UNSET
    turn_detection: Any = UNSET
    transcription: JsonObject | _Maybe = UNSET
    noise_reduction: JsonObject | _Maybe = UNSET


class _OutputPatch(msgspec.Struct, kw_only=True):
    format: str | JsonObject | _Maybe = UNSET
    sample_rate_hz: int | float | _Maybe = UNSET
    sample_rate: int | float | _Maybe = UNSET
    voice: str | _Maybe = UNSET
    speed: _Amount | _Maybe = UNSET


class _AudioPatch(msgspec.Struct, kw_only=True):
    input: _InputPatch | None = None
    output: _OutputPatch | None = None


class _Patch(msgspec.Struct, kw_only=True):
    """The session object as it may be written."""

    model: str | _Maybe = UNSET
    modalities: tuple[str, ...] | _Maybe = UNSET
    output_modalities: tuple[str, ...] | _Maybe = UNSET
    instructions: str | _Maybe = UNSET
    initial_user_text: str | _Maybe = UNSET
    voice: str | _Maybe = UNSET
    ref_audio: str | _Maybe = UNSET
    input_audio_format: str | JsonObject | _Maybe = UNSET
    sample_rate_hz: int | float | _Maybe = UNSET
    sample_rate: int | float | _Maybe = UNSET
    output_audio_format: str | JsonObject | _Maybe = UNSET
    response_format: str | JsonObject | _Maybe = UNSET
    temperature: _Amount | _Maybe = UNSET
    max_response_output_tokens: int | str | _Maybe = UNSET
    max_output_tokens: int | str | _Maybe = UNSET
    max_tokens: int | str | _Maybe = UNSET
    speed: _Amount | _Maybe = UNSET
    idle_timeout_s: _Amount | _Maybe = UNSET
    max_session_s: _Period | _Maybe = UNSET
    disconnect_grace_s: _Amount | _Maybe = UNSET
    overflow_policy: str | _Maybe = UNSET
    overlap_policy: str | _Maybe = UNSET
    overlap_short_ack_ms: _Amount | _Maybe = UNSET
    overlap_barge_in_ms: _Amount | _Maybe = UNSET
    overlap_silence_rms: _Amount | _Maybe = UNSET
    playback_commit_policy: str | _Maybe = UNSET
    turn_detection: Any = UNSET
    tools: tuple[JsonObject, ...] | _Maybe = UNSET
    tool_choice: str | JsonObject | _Maybe = UNSET
    metadata: JsonObject | _Maybe = UNSET
    include: tuple[str, ...] | _Maybe = UNSET
    prompt: JsonObject | _Maybe = UNSET
    input_audio_transcription: JsonObject | _Maybe = UNSET
    input_audio_noise_reduction: JsonObject | _Maybe = UNSET
    tracing: str | JsonObject | _Maybe = UNSET
    truncation: str | JsonObject | _Maybe = UNSET
    audio: _AudioPatch | None = None
    extra_body: JsonObject | None = None


class _ExtraBody(msgspec.Struct, kw_only=True):
    """The keys of `extra_body` that are the session's own, not the model's."""

    auto_response: bool | _Maybe = UNSET
    overlap_policy: str | _Maybe = UNSET
    overlap_short_ack_ms: _Amount | _Maybe = UNSET
    overlap_barge_in_ms: _Amount | _Maybe = UNSET
    overlap_silence_rms: _Amount | _Maybe = UNSET
    playback_commit_policy: str | _Maybe = UNSET


_INPUT_AUDIO, _OUTPUT_AUDIO, _EXTRA_BODY = _InputPatch(), _OutputPatch(), _ExtraBody()
_OWN_KEYS = frozenset(_ExtraBody.__struct_fields__)

# The server's own keys, which a client that sends back what it was told may name without effect.
_SERVER_KEYS = frozenset(
    "id session_id object type state turn_state epoch turn_id active_request_id active_response_id "
    "active_response_turn_id playback capabilities expires_at".split()
)


class SessionPatch(msgspec.Struct, kw_only=True):
    """What a session object changes. `changes` are plain fields by name; formats are (name or None, rate or
    None), None where not touched; `turn_detection` is raw and UNSET where not touched."""

    changes: dict[str, Any]
    input_format: tuple[str | None, int | None] | None = None
    output_format: tuple[str | None, int | None] | None = None
    turn_detection: Any = UNSET
    turn_detection_param: str = "turn_detection"
    overlap_policy: str | None | UnsetType = UNSET
    overlap_checked: bool = True
    """False: the policy came in extra_body, which need not agree with turn detection."""
    extra_body: JsonObject = {}
    extra: JsonObject = {}


def fold_patch(session: JsonObject) -> SessionPatch:
    """Read a session object. Raises RealtimeProtocolError whose `param` is relative to it."""
    if session.get("type") == "transcription":
        raise RealtimeProtocolError("unsupported", "transcription sessions are not served", param="type")
    check_numbers(session, None)
    told = read(session, _Patch)
    body = told.extra_body or {}
    own = _EXTRA_BODY
    if body:
        own = _read_extra_body(body)
    sound = told.audio or _AudioPatch()
    heard, said = sound.input or _INPUT_AUDIO, sound.output or _OUTPUT_AUDIO
    patch = SessionPatch(
        changes=_changes(told, own, heard, said),
        input_format=_input_format(told, heard),
        output_format=_output_format(told, said),
        overlap_policy=_first(own.overlap_policy, told.overlap_policy),
        overlap_checked=own.overlap_policy is UNSET,
        extra_body={key: value for key, value in body.items() if key not in _OWN_KEYS},
        extra={k: v for k, v in session.items() if k not in _PATCH_KEYS and k not in _SERVER_KEYS},
    )
    if heard.turn_detection is not UNSET:
        patch.turn_detection, patch.turn_detection_param = heard.turn_detection, "audio.input.turn_detection"
    else:
        patch.turn_detection = told.turn_detection
    return patch


_PATCH_KEYS = frozenset(_Patch.__struct_fields__)


def _first(*values: Any) -> Any:
    """The first value that was written at all; null counts as written."""
    return next((value for value in values if value is not UNSET), UNSET)


def _read_extra_body(body: JsonObject) -> _ExtraBody:
    for key in ("ref_audio_path", "tts_ref_audio_path"):
        if body.get(key) is not None:
            raise RealtimeProtocolError(
                "unsupported_ref_audio_path", "send the reference voice itself", param=f"extra_body.{key}"
            )
    try:
        return read(body, _ExtraBody)
    except RealtimeProtocolError as error:
        raise error.under("extra_body") from None


def _changes(told: _Patch, own: _ExtraBody, heard: _InputPatch, said: _OutputPatch) -> dict[str, Any]:
    found = {
        "model": told.model,
        "modalities": _first(told.modalities, told.output_modalities),
        "voice": _first(told.voice, said.voice),
        "speed": _speed(told, said),
        "max_output_tokens": _tokens(told),
        "transcription": _first(told.input_audio_transcription, heard.transcription),
        "noise_reduction": _first(told.input_audio_noise_reduction, heard.noise_reduction),
        "auto_response": own.auto_response,
    }
    for name in _PLAIN:
        found[name] = getattr(told, name)
    for name in _EITHER:
        found[name] = _first(getattr(own, name), getattr(told, name))
    return {name: value for name, value in found.items() if value is not UNSET}


_PLAIN = (
    *("instructions", "initial_user_text", "ref_audio", "temperature", "idle_timeout_s", "max_session_s"),
    *("disconnect_grace_s", "overflow_policy", "tools", "tool_choice", "metadata", "include", "prompt"),
    *("tracing", "truncation"),
)
_EITHER = ("overlap_short_ack_ms", "overlap_barge_in_ms", "overlap_silence_rms", "playback_commit_policy")


def _speed(told: _Patch, said: _OutputPatch) -> int | float | _Maybe:
    for value, param in ((told.speed, "speed"), (said.speed, "audio.output.speed")):
        if value is not UNSET:
            return None if value is None else read_speed(value, param)
    return UNSET


def _tokens(told: _Patch) -> int | None | UnsetType:
    """None is unlimited."""
    for name in ("max_response_output_tokens", "max_output_tokens", "max_tokens"):
        value = getattr(told, name)
        if value is UNSET:
            continue
        return read_max_tokens(value, name)
    return UNSET


def _input_format(told: _Patch, heard: _InputPatch) -> tuple[str | None, int | None] | None:
    name: str | None = None
    rate: int | None = None
    for value, param in (
        (told.input_audio_format, "input_audio_format"),
        (heard.format, "audio.input.format"),
    ):
        if value is not UNSET and value is not None:
            name, rate = read_format(value, param=param)
            break
    named = {
        "sample_rate_hz": told.sample_rate_hz,
        "sample_rate": told.sample_rate,
        "audio.input.sample_rate_hz": heard.sample_rate_hz,
        "audio.input.sample_rate": heard.sample_rate,
    }
    return _with_rate(name, _rate(named) or rate)


def _output_format(told: _Patch, said: _OutputPatch) -> tuple[str | None, int | None] | None:
    name: str | None = None
    rate: int | None = None
    for value, param in (
        (told.output_audio_format, "output_audio_format"),
        (told.response_format, "response_format"),
        (said.format, "audio.output.format"),
    ):
        if value is not UNSET and value is not None:
            name, rate = read_format(value, output=True, param=param)
            break
    named = {"audio.output.sample_rate_hz": said.sample_rate_hz, "audio.output.sample_rate": said.sample_rate}
    return _with_rate(name, rate or _rate(named))


def _rate(named: dict[str, Any]) -> int | None:
    for param, value in named.items():
        if value is not UNSET and value is not None:
            return check_rate(value, param)
    return None


def _with_rate(name: str | None, rate: int | None) -> tuple[str | None, int | None] | None:
    return None if name is None and rate is None else (name, rate)
