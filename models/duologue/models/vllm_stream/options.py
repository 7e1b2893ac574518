"""How vLLM is run, typed: the table `engine` of a pipeline's options, and those of a turn model on it.

Used by both halves; imports no engine library. A wrong key or value is a PipelineError that names it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from duologue.model.pipeline import PipelineError, PipelineSpec

RATE_HZ = 16_000
"""Of the sound that the model hears."""
PERSONA = "You are a helpful voice assistant. Answer in one or two short sentences."

MAX_WAITING = 64
"""Orders of a session that its request has not come to: turns, messages, questions."""

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=600)]


class EngineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str = "auto"
    enforce_eager: bool = False
    """No CUDA graphs and no compilation: it starts sooner and answers later."""
    prefix_caching: bool = False
    """A context that is read again finds whole blocks of it that nobody has overwritten. Not to be counted on."""
    gpu_memory: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """The share of the GPU's memory that vLLM takes; None: vLLM's own default."""
    tensor_parallel: _Count = 1
    append_timeout_s: _Seconds = 20.0
    """How long an append may go without its next token."""
    chunk_tokens: _Count = 16
    """Tokens that one append makes at most; an answer is made of as many as it needs, and can be ended between two."""
    scheduler: str = ""
    """The dotted name of another scheduler class: for counting what is scheduled."""
    arguments: dict[str, Any] = {}
    """More of vLLM's `AsyncEngineArgs`, as they are."""


class TurnOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a model that hears turns and writes answers. The strings are the model's own chat format."""

    model: str
    """A folder, or an id of the hub."""
    engine: EngineOptions = EngineOptions()
    context_tokens: Annotated[int, msgspec.Meta(ge=256)] = 4096
    """Of one session, sound included; its part of the KV cache is set aside for it."""
    max_tokens: _Count = 256
    """Of an answer, unless the session says otherwise."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.7
    instructions: str = PERSONA
    unit_ms: Annotated[int, msgspec.Meta(ge=20, le=1000)] = 200
    clip_s: Annotated[float, msgspec.Meta(gt=0, le=30)] = 30.0
    """Sound of a turn goes in by pieces of at most this long: what the model's encoder takes at once."""
    turn_audio_s: _Seconds = 120.0
    """Sound of one turn; of a longer one the end is kept."""
    turn_detection: dict[str, Any] | None = msgspec.field(
        default_factory=lambda: {"type": "server_vad", "silence_duration_ms": 800}
    )
    system_format: str = "<|im_start|>system\n{text}<|im_end|>\n"
    user_open: str = "<|im_start|>user\n"
    turn_close: str = "<|im_end|>\n"
    answer_open: str = "<|im_start|>assistant\n"
    sound_open: str = "<|audio_bos|>"
    sound_token: str = "<|AUDIO|>"
    sound_close: str = "<|audio_eos|>\n"


def read_options(pipeline: PipelineSpec) -> TurnOptions:
    """Raises PipelineError."""
    try:
        options = msgspec.convert(pipeline.options, TurnOptions)
    except msgspec.ValidationError as error:
        raise PipelineError(f"{pipeline.name}: options: {error}") from None
    if options.max_tokens * 2 > options.context_tokens:
        raise PipelineError(f"{pipeline.name}: options.max_tokens is more than half of context_tokens")
    if "{text}" not in options.system_format:
        raise PipelineError(f"{pipeline.name}: options.system_format has no {{text}} in it")
    if len(pipeline.stages) != 1:
        raise PipelineError(f"{pipeline.name}: there is one stage; the session in front of it tells turns apart")
    return options
