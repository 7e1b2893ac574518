"""Turn detection as a session has it: typed, complete, merged leaf by leaf.

Rule 1. A patch of the type in force is merged; a changed type starts from that type's defaults.
Rule 2. Whatever is wrong in it is `unsupported_turn_detection`, and `param` names the leaf.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.json_types import JsonObject

MAX_PAUSE_MS = {"low": 8000, "medium": 4000, "high": 2000, "auto": 4000}
"""Hard maximum of a pause under semantic_vad, by eagerness: then the turn ends whatever the words say."""

_Threshold = Annotated[float, msgspec.Meta(gt=0.15, le=1.0)]
_Ms = Annotated[int, msgspec.Meta(ge=0, le=600_000)]
_PositiveMs = Annotated[int, msgspec.Meta(ge=1, le=600_000)]


class ServerVad(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    tag_field="type",
    tag="server_vad",
    forbid_unknown_fields=True,
):
    """Loudness-independent speech detection; a turn ends after unbroken silence."""

    threshold: _Threshold = 0.5
    prefix_padding_ms: _Ms = 300
    silence_duration_ms: _Ms = 500
    min_speech_duration_ms: _Ms = 96
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: _PositiveMs | None = None
    """Accepted and echoed as clients of the OpenAI API send it; null is the only value that is served."""

    @property
    def type(self) -> Literal["server_vad"]:
        return "server_vad"


class SemanticVad(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    tag_field="type",
    tag="semantic_vad",
    forbid_unknown_fields=True,
):
    """Speech detection plus a model that says whether the words are a finished turn."""

    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True

    @property
    def type(self) -> Literal["semantic_vad"]:
        return "semantic_vad"

    @property
    def max_pause_ms(self) -> int:
        return MAX_PAUSE_MS[self.eagerness]


TurnDetection = ServerVad | SemanticVad
_TYPES: dict[str, type[ServerVad] | type[SemanticVad]] = {
    "server_vad": ServerVad,
    "semantic_vad": SemanticVad,
}


def merge_turn_detection(
    current: TurnDetection | None, patch: Any, param: str = "turn_detection"
) -> TurnDetection | None:
    """What a patch (object or null) makes of the current detection.

    Raises `unsupported_turn_detection` for an unknown type or key or a value out of range, `bad_event` for
    something that is neither object nor null.
    """
    if patch is None:
        return None
    if not isinstance(patch, dict):
        raise RealtimeProtocolError("bad_event", f"{param} must be an object or null", param=param)
    kind = patch.get("type", None if current is None else current.type)
    if not isinstance(kind, str) or kind not in _TYPES:
        raise RealtimeProtocolError(
            "unsupported_turn_detection", "type must be server_vad or semantic_vad", param=f"{param}.type"
        )
    base: JsonObject = msgspec.to_builtins(current) if current is not None and current.type == kind else {}
    try:
        merged = msgspec.convert({**base, **patch, "type": kind}, _TYPES[kind])
    except msgspec.ValidationError as error:
        raise _refusal(error, patch, kind, param) from None
    if isinstance(merged, ServerVad) and merged.idle_timeout_ms is not None:
        raise RealtimeProtocolError(
            "unsupported_turn_detection", "idle_timeout_ms must be null", param=f"{param}.idle_timeout_ms"
        )
    return merged


def _refusal(error: msgspec.ValidationError, patch: JsonObject, kind: str, param: str) -> RealtimeProtocolError:
    text, _, path = str(error).partition(" - at `$.")
    known = {*_TYPES[kind].__struct_fields__, "type"}
    unknown = sorted(key for key in patch if key not in known)
    leaf = path.rstrip("`") or (unknown[0] if unknown else "")
    message = f"{unknown[0]!r} is no key of {kind}" if unknown else text
    return RealtimeProtocolError("unsupported_turn_detection", message, param=f"{param}.{leaf}" if leaf else param)
