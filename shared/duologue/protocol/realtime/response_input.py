"""The options of `response.create` as clients write them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from duologue.protocol.realtime.commands import ResponseOptions
from duologue.protocol.realtime.formats import AudioFormat, check_rate, read_format
from duologue.protocol.realtime.json_types import JsonObject
from duologue.protocol.realtime.limits import read_max_tokens, read_speed
from duologue.protocol.realtime.strict import read

_Amount = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class _Output(msgspec.Struct, kw_only=True):
    voice: str | None = None
    format: str | JsonObject | None = None
    sample_rate_hz: int | float | None = None
    speed: _Amount | None = None


class _Audio(msgspec.Struct, kw_only=True):
    output: _Output | None = None


class _Written(msgspec.Struct, kw_only=True):
    instructions: str | None = None
    voice: str | None = None
    temperature: _Amount | None = None
    max_response_output_tokens: int | str | None = None
    max_output_tokens: int | str | None = None
    max_tokens: int | str | None = None
    tools: tuple[JsonObject, ...] | None = None
    tool_choice: str | JsonObject | None = None
    output_audio_format: str | JsonObject | None = None
    response_format: str | JsonObject | None = None
    speed: _Amount | None = None
    modalities: tuple[str, ...] | None = None
    output_modalities: tuple[str, ...] | None = None
    conversation: str | None = None
    metadata: JsonObject | None = None
    prompt: JsonObject | None = None
    extra_body: JsonObject | None = None
    audio: _Audio | None = None


def read_options(response: Any) -> ResponseOptions:
    """Raises RealtimeProtocolError with `param` relative to `response`."""
    written = read(response, _Written)
    sound = (written.audio and written.audio.output) or _Output()
    tokens, unlimited = _tokens(written)
    return ResponseOptions(
        instructions=written.instructions,
        voice=written.voice if written.voice is not None else sound.voice,
        temperature=written.temperature,
        max_output_tokens=tokens,
        unlimited_tokens=unlimited,
        tools=written.tools,
        tool_choice=written.tool_choice,
        output_format=_format(written, sound),
        speed=_speed(written, sound),
        modalities=written.modalities if written.modalities is not None else written.output_modalities,
        conversation=written.conversation,
        metadata=written.metadata,
        prompt=written.prompt,
        extra_body=written.extra_body,
    )


def _speed(written: _Written, sound: _Output) -> int | float | None:
    for value, param in ((written.speed, "speed"), (sound.speed, "audio.output.speed")):
        if value is not None:
            return read_speed(value, param)
    return None


def _tokens(written: _Written) -> tuple[int | None, bool]:
    for name in ("max_response_output_tokens", "max_output_tokens", "max_tokens"):
        value = getattr(written, name)
        if value is not None:
            tokens = read_max_tokens(value, name)
            return tokens, tokens is None
    return None, False


def _format(written: _Written, sound: _Output) -> AudioFormat | None:
    for value, param in (
        (written.output_audio_format, "output_audio_format"),
        (written.response_format, "response_format"),
        (sound.format, "audio.output.format"),
    ):
        if value is not None:
            name, rate = read_format(value, output=True, param=param)
            if rate is None and sound.sample_rate_hz is not None:
                rate = check_rate(sound.sample_rate_hz, "audio.output.sample_rate_hz")
            return AudioFormat(name, rate or 0)
    return None
