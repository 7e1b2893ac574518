"""The configuration of a duplex session: its fields, how it opens, how a patch changes it.

Rule 1. A config is a value: `open` and `updated` return a new one or raise, and nothing is half done.
Rule 2. Wrong types, unknown formats and contradictions are coded and name the key (`session.<key>`).
Rule 3. What depends on the session's state (a voice that was heard, instructions after the first unit) is
        the core's to refuse: `changed` tells it what a patch touched.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from duologue.protocol.duplex.openai_values import check_openai_values
from duologue.protocol.duplex.session_patch import (
    MAX_EXTRA_BODY_BYTES,
    MAX_EXTRA_BYTES,
    SessionPatch,
    fold_patch,
)
from duologue.protocol.realtime.dialect import Dialect
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.formats import OPENAI_FORMATS, AudioFormat, resolve_rate
from duologue.protocol.realtime.json_types import JsonObject
from duologue.protocol.realtime.session import RealtimeSessionConfig
from duologue.protocol.realtime.turn_detection import ServerVad, TurnDetection, merge_turn_detection

OverlapPolicy = Literal["listen_only", "barge_in_on_speech", "barge_in_on_sustained_speech"]
CommitPolicy = Literal["ack_only", "commit_all_on_done"]
OverflowPolicy = Literal["close", "fail_response"]

OUTPUT_RATE_HZ = 24_000
_INPUT_RATE_HZ = {Dialect.duplex: 16_000, Dialect.openai: 24_000, Dialect.openai_beta: 24_000}


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the server grants. A session chooses idle timeout and overflow policy and may lower the rest."""

    idle_timeout_s: float = 300
    max_session_s: float = 3600
    disconnect_grace_s: float = 30
    overflow_policy: OverflowPolicy = "close"


DEFAULT_LIMITS = SessionLimits()


class SessionConfig(RealtimeSessionConfig, frozen=True, kw_only=True):
    """Tier 2: adds what a duplex session has beyond the OpenAI API."""

    dialect: Dialect = Dialect.duplex
    auto_response: bool = False
    initial_user_text: str | None = None
    ref_audio: str | None = None
    idle_timeout_s: float = 300
    max_session_s: float = 3600
    disconnect_grace_s: float = 30
    overflow_policy: OverflowPolicy = "close"
    overlap_policy: OverlapPolicy = "listen_only"
    overlap_short_ack_ms: int = 700
    overlap_barge_in_ms: int = 1200
    overlap_silence_rms: float = 0.003
    playback_commit_policy: CommitPolicy = "ack_only"
    extra_body: JsonObject = {}
    """What the model's plugin reads and checks; keys that are fields here are taken out."""
    extra: JsonObject = {}
    """Unknown keys of the session object, echoed in the duplex dialect."""

    @property
    def response_format(self) -> str:
        """The peer's word for the output encoding."""
        return "wav" if self.output_format.name == "wav" else "pcm"

    @classmethod
    def open(
        cls,
        session: JsonObject,
        *,
        dialect: Dialect,
        model: str,
        auto_default: bool = False,
        limits: SessionLimits = DEFAULT_LIMITS,
        output_rate_hz: int = OUTPUT_RATE_HZ,
    ) -> SessionConfig:
        """The config of a new session from the session object of its first message.

        `model` is the one to use if the object names none. `auto_default` is `auto_response` in the OpenAI
        dialects, where a model may decide its own turns; in `duplex` it is false unless asked for.
        `output_rate_hz` is the model's own rate, for PCM in the duplex dialect that names none.
        Raises RealtimeProtocolError: `invalid_session_config` in the duplex dialect, as `updated` elsewhere.
        """
        defaults = cls.provisional(dialect, model=model, limits=limits)
        if dialect.is_openai:
            defaults = msgspec.structs.replace(defaults, auto_response=auto_default)
        else:
            defaults = msgspec.structs.replace(defaults, output_format=AudioFormat("pcm16", output_rate_hz))
        try:
            patch = _folded(session, dialect)
            config = _merged(defaults, patch, opening=True)
        except RealtimeProtocolError as error:
            if dialect is Dialect.duplex and error.code in _AT_OPEN:
                error.code = "invalid_session_config"
            raise error.under("session") from None
        if dialect is Dialect.duplex:  # only an update can set the other policy there
            return msgspec.structs.replace(config, playback_commit_policy="ack_only")
        return config

    @classmethod
    def provisional(cls, dialect: Dialect, *, model: str = "", limits: SessionLimits = DEFAULT_LIMITS) -> SessionConfig:
        """The defaults of a dialect: what a session is before its first command."""
        config = cls(
            model=model,
            dialect=dialect,
            idle_timeout_s=limits.idle_timeout_s,
            max_session_s=limits.max_session_s,
            disconnect_grace_s=limits.disconnect_grace_s,
            overflow_policy=limits.overflow_policy,
        )
        if not dialect.is_openai:
            return config
        return msgspec.structs.replace(
            config,
            input_format=AudioFormat("pcm16", OUTPUT_RATE_HZ),
            turn_detection=ServerVad(),
            overlap_policy="barge_in_on_speech",
            playback_commit_policy="commit_all_on_done",
        )

    def updated(self, patch: JsonObject) -> SessionConfig:
        """This config with a patch merged in; a leaf that is not named stays, null switches off.

        Raises RealtimeProtocolError with `param`: unsupported_audio_format, unsupported_turn_detection,
        model_update_unsupported, ref_audio_update_unsupported, invalid_session_config (fixed at open),
        unsupported_ref_audio_path, bad_event (wrong type).
        """
        try:
            folded = _folded(patch, self.dialect)
            _refuse_fixed(self, folded)
            return _merged(self, folded, opening=False)
        except RealtimeProtocolError as error:
            raise error.under("session") from None


_AT_OPEN = frozenset({"bad_event", "unsupported_audio_format", "unsupported_turn_detection"})


def changed(old: SessionConfig, new: SessionConfig) -> frozenset[str]:
    """The names of the fields that differ."""
    return frozenset(name for name in old.__struct_fields__ if getattr(old, name) != getattr(new, name))


# -- merging ---------------------------------------------------------------------------------------------

_FIXED = {
    "model": "model_update_unsupported",
    "ref_audio": "ref_audio_update_unsupported",
    "idle_timeout_s": "invalid_session_config",
    "max_session_s": "invalid_session_config",
    "disconnect_grace_s": "invalid_session_config",
    "initial_user_text": "invalid_session_config",
    "auto_response": "invalid_session_config",
}


def _refuse_fixed(config: SessionConfig, patch: SessionPatch) -> None:
    for name, code in _FIXED.items():
        value = patch.changes.pop(name, None)
        if value is not None and value != getattr(config, name):
            raise RealtimeProtocolError(code, f"{name} is fixed at open", param=name)


def _folded(session: JsonObject, dialect: Dialect) -> SessionPatch:
    patch = fold_patch(session)
    if dialect.is_openai:
        check_openai_values(session, dialect)
    return patch


def _merged(config: SessionConfig, patch: SessionPatch, *, opening: bool) -> SessionConfig:
    changes: dict[str, Any] = {}
    for name, value in patch.changes.items():
        normalise = _NORMALISE.get(name)
        changes[name] = value if normalise is None else normalise(config, value)
    detection = config.turn_detection
    if patch.turn_detection is not UNSET:
        detection = merge_turn_detection(detection, patch.turn_detection, patch.turn_detection_param)
        changes["turn_detection"] = detection
    changes["overlap_policy"] = _overlap_policy(config, patch, detection)
    default_rate = _INPUT_RATE_HZ[config.dialect]
    changes["input_format"] = _format(config.input_format, patch.input_format, default_rate)
    changes["output_format"] = _format(config.output_format, patch.output_format, OUTPUT_RATE_HZ)
    if config.dialect.is_openai:
        _refuse_unnamed_formats(changes)
    if patch.extra_body:
        changes["extra_body"] = _keys(config.extra_body, patch.extra_body, MAX_EXTRA_BODY_BYTES, "extra_body")
    if patch.extra:
        changes["extra"] = _keys(config.extra, patch.extra, MAX_EXTRA_BYTES, None)
    return msgspec.structs.replace(config, **changes)


def _format(current: AudioFormat, patch: tuple[str | None, int | None] | None, default_rate: int) -> AudioFormat:
    if patch is None:
        return current
    name = patch[0] or current.name
    return AudioFormat(name, resolve_rate(name, patch[1], current, default_rate))


def _refuse_unnamed_formats(changes: dict[str, Any]) -> None:
    """The echo of the OpenAI dialects has no word for floats and files, so a session cannot have them."""
    for field in ("input_format", "output_format"):
        name = changes[field].name
        if name not in OPENAI_FORMATS:
            param = field.replace("_", "_audio_")
            raise RealtimeProtocolError(
                "unsupported_audio_format", f"{name} is served in the duplex dialect only", param=param
            )


def _keys(current: JsonObject, patch: JsonObject, bound: int, param: str | None) -> JsonObject:
    """Key-wise merge; null removes a key."""
    merged = {key: value for key, value in {**current, **patch}.items() if value is not None}
    if len(msgspec.json.encode(merged)) > bound:
        raise RealtimeProtocolError("bad_event", f"more than {bound} bytes of {param or 'unknown keys'}", param=param)
    return merged


def _overlap_policy(config: SessionConfig, patch: SessionPatch, detection: TurnDetection | None) -> OverlapPolicy:
    """Turn detection decides the policy; sustained speech goes with any detection."""
    due: OverlapPolicy = "listen_only"
    if detection is not None and detection.interrupt_response:
        due = "barge_in_on_speech"
    asked = patch.overlap_policy
    if asked is UNSET:
        kept = patch.turn_detection is UNSET or config.overlap_policy == "barge_in_on_sustained_speech"
        return config.overlap_policy if kept else due
    if asked is None:
        return due
    known: OverlapPolicy = _one_of("overlap_policy", OverlapPolicy, asked)
    if patch.overlap_checked and known not in (due, "barge_in_on_sustained_speech"):
        raise RealtimeProtocolError(
            "unsupported_turn_detection", f"{known} contradicts turn_detection", param="overlap_policy"
        )
    return known


def _one_of(param: str, choices: Any, value: str) -> Any:
    names = choices.__args__
    if value not in names:
        raise RealtimeProtocolError("bad_event", f"{param} must be one of {', '.join(names)}", param=param)
    return value


def _lowered(name: str) -> Any:
    """A limit of the server that a session may lower; null leaves it."""
    return lambda config, value: getattr(config, name) if value is None else min(value, getattr(config, name))


# How a value becomes a field: (config before, value as written) -> value. Others are taken as they are.
_NORMALISE: dict[str, Any] = {
    "model": lambda config, value: value or config.model,
    "modalities": lambda config, value: ("text", "audio") if value is None else value,
    "auto_response": lambda config, value: config.auto_response if value is None else value,
    "idle_timeout_s": lambda config, value: value or config.idle_timeout_s,
    "max_session_s": _lowered("max_session_s"),
    "disconnect_grace_s": _lowered("disconnect_grace_s"),
    "overflow_policy": lambda config, value: (
        config.overflow_policy if value is None else _one_of("overflow_policy", OverflowPolicy, value)
    ),
    "playback_commit_policy": lambda config, value: "ack_only" if value == "ack_only" else "commit_all_on_done",
    "overlap_short_ack_ms": lambda _, value: 700 if value is None else int(value),
    "overlap_barge_in_ms": lambda _, value: 1200 if value is None else int(value),
    "overlap_silence_rms": lambda _, value: 0.003 if value is None else value,
}
