"""The options of a Qwen3-Omni pipeline, typed: what `[options]` may say, with the defaults.

Used by both halves. A wrong key or value is a PipelineError that names it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from duologue.model.pipeline import PipelineError, PipelineSpec

RATE_HZ = 16_000
"""Of the sound that the model hears."""
PERSONA = "You are a helpful voice assistant. Answer in one or two short sentences."

_DETECTION = {"type": "server_vad", "silence_duration_ms": 800}
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=600)]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    """Base of the OpenAI-compatible API (".../v1")."""
    model: str = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
    """Its name there."""
    api_key_env: str = ""
    """The environment variable that holds the key; empty: none is sent."""
    timeout_s: _Seconds = 30.0
    """How long the server may send nothing while it answers."""
    connect_timeout_s: _Seconds = 5.0
    audio: bool = True
    """The server speaks (vLLM-Omni); stock vLLM serves the thinker, which writes."""
    voice: str = ""
    """The speaker of sessions that name none; empty: the server's own."""
    output_rate_hz: Annotated[int, msgspec.Meta(ge=8000, le=48_000)] = 24_000
    """Of sound that comes without a header."""
    unit_ms: Annotated[int, msgspec.Meta(ge=20, le=1000)] = 200
    turn_detection: dict[str, Any] | None = msgspec.field(default_factory=lambda: dict(_DETECTION))
    """Of sessions of the duplex dialect that say nothing about it; `semantic_vad` waits for the end of the thought."""
    instructions: str = PERSONA
    max_tokens: _Count = 512
    """Of an answer, unless the session says otherwise."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    tools: bool = True
    """The server can have the model call functions."""
    images: bool = True
    usage: bool = True
    """The server knows `stream_options`, and counts tokens."""
    extra_body: dict[str, Any] = {}
    """More keys of every request, under what the session gives itself."""
    history_turns: _Count = 32
    """Turns of a conversation that are sent with the next; the oldest go first."""
    history_audio_s: _Seconds = 180.0
    """Sound of the user in them, the turn that is answered included."""
    turn_audio_s: _Seconds = 120.0
    """Sound of one turn; of a longer one its end is kept."""


def read_options(pipeline: PipelineSpec) -> Options:
    """Raises PipelineError."""
    try:
        options = msgspec.convert(pipeline.options, Options)
    except msgspec.ValidationError as error:
        raise PipelineError(f"{pipeline.name}: options: {error}") from None
    if not options.url.startswith(("http://", "https://")):
        raise PipelineError(f"{pipeline.name}: options.url: {options.url!r} is no http(s) URL")
    if options.turn_audio_s > options.history_audio_s:
        raise PipelineError(f"{pipeline.name}: options.turn_audio_s is more than history_audio_s")
    if len(pipeline.stages) != 1:
        raise PipelineError(f"{pipeline.name}: there is one stage; the session in front of it tells turns apart")
    return options
