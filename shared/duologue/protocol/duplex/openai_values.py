"""What a session object may hold in the OpenAI dialects, where it is echoed to clients that parse it strictly.

Only fields that are echoed as they were written are looked at here: a value that the published types do not know would
make `session.updated` unreadable for the client that sent it. The duplex dialect echoes them to whoever sent them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from duologue.protocol.realtime.dialect import Dialect
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.protocol.realtime.json_types import JsonObject
from duologue.protocol.realtime.strict import read

_Modalities = Annotated[tuple[Literal["text", "audio"], ...], Meta(min_length=1)]
_Share = Annotated[float, Meta(ge=0, le=1)]


class _Transcription(msgspec.Struct):
    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class _NoiseReduction(msgspec.Struct):
    type: Literal["near_field", "far_field"] | None = None


class _Tool(msgspec.Struct):
    type: Literal["function"] | None = None
    name: str | None = None
    description: str | None = None


class _Mcp(msgspec.Struct):
    """A server of tools, as GA describes it. Models that call functions only leave it alone."""

    server_label: str


class _Choice(msgspec.Struct):
    type: Literal["function", "mcp"]
    name: str | None = None
    server_label: str | None = None


class _Prompt(msgspec.Struct):
    id: str
    variables: dict[str, Any] | None = None
    version: str | None = None


class _Tracing(msgspec.Struct):
    workflow_name: str | None = None
    group_id: str | None = None


class _Retention(msgspec.Struct):
    type: Literal["retention_ratio"]
    retention_ratio: _Share


class _Input(msgspec.Struct):
    transcription: _Transcription | None = None
    noise_reduction: _NoiseReduction | None = None


class _Audio(msgspec.Struct):
    input: _Input | None = None


class _Common(msgspec.Struct):
    modalities: _Modalities | None = None
    output_modalities: _Modalities | None = None
    input_audio_transcription: _Transcription | None = None
    input_audio_noise_reduction: _NoiseReduction | None = None
    audio: _Audio | None = None
    tracing: Literal["auto"] | _Tracing | None = None


class _Ga(_Common):
    tool_choice: Literal["none", "auto", "required"] | _Choice | None = None
    include: tuple[Literal["item.input_audio_transcription.logprobs"], ...] | None = None
    truncation: Literal["auto", "disabled"] | _Retention | None = None
    prompt: _Prompt | None = None


class _Beta(_Common):
    tool_choice: str | None = None


def check_openai_values(session: JsonObject, dialect: Dialect) -> None:
    """Raises `bad_event`, whose `param` is relative to the session object, for what a strict client cannot read."""
    beta = dialect is Dialect.openai_beta
    read(session, _Beta if beta else _Ga)
    choice = session.get("tool_choice")
    if isinstance(choice, dict):
        named = "name" if choice["type"] == "function" else "server_label"
        if choice.get(named) is None:
            raise RealtimeProtocolError("bad_event", f"{named} is required", param=f"tool_choice.{named}")
    for n, tool in enumerate(session.get("tools") or ()):
        kind = _Mcp if isinstance(tool, dict) and tool.get("type") == "mcp" and not beta else _Tool
        try:
            read(tool, kind)
        except RealtimeProtocolError as error:
            raise error.under(f"tools[{n}]") from None
