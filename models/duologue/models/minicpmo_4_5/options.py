"""The `[options]` of a MiniCPM-o pipeline, typed. Used by both halves; imports no engine library.

A wrong key or value is a PipelineError that names it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from duologue.model.pipeline import PipelineError, PipelineSpec

UNIT_MS: Final = 1000
INPUT_RATE_HZ: Final = 16_000
OUTPUT_RATE_HZ: Final = 24_000
UNIT_SAMPLES: Final = INPUT_RATE_HZ * UNIT_MS // 1000
FIRST_WINDOW_MS: Final = 1035
"""What the first unit is padded to, with silence in front: the first window of the encoder is longer."""

AUDIO_TOKENS: Final = 10
"""Of one second that is heard."""
FRAME_TOKENS: Final = 66
"""Of one camera frame that is not cut into slices: 64, and what encloses them."""
LISTEN_TOKENS: Final = 13
"""What the context grows by in a second of listening: the sound, and what encloses it."""
SPEAK_TOKENS: Final = 40
"""What it grows by in a second of speaking, at most."""
MAX_FRAMES: Final = 2
"""Camera frames of one unit; of more the last ones are seen."""
_PROMPT_TOKENS: Final = 512
"""Set aside for the instructions and the voice where a context is sized."""

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Temperature = Annotated[float, msgspec.Meta(ge=0.0, le=2.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Penalty = Annotated[float, msgspec.Meta(gt=0.0, le=4.0)]
WindowMode = Literal["off", "basic", "context"]


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are drawn; the defaults are the model's own. A temperature of 0 takes the likeliest."""

    temperature: Temperature = 0.7
    top_k: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20
    top_p: Share = 0.8
    listen_prob_scale: _Penalty = 1.0
    text_repetition_penalty: _Penalty = 1.05
    text_repetition_window_size: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 512
    length_penalty: _Penalty = 1.1


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model's own sliding window. `basic`: above `high` tokens the oldest units are dropped, down to `low`.
    `context`: the last units are kept, and the text of older ones. `off`: the context rolls over when it is full."""

    sliding_window_mode: WindowMode = "off"
    basic_window_high_tokens: Count = 8000
    basic_window_low_tokens: Count = 6000
    context_previous_max_tokens: Count = 500
    context_max_units: Count = 24

    def problem(self, context_tokens: int) -> str:
        """What is wrong with it; empty: nothing."""
        if self.sliding_window_mode != "basic":
            return ""
        if self.basic_window_low_tokens >= self.basic_window_high_tokens:
            return "basic_window_low_tokens must be below basic_window_high_tokens"
        if self.basic_window_high_tokens + SPEAK_TOKENS + MAX_FRAMES * FRAME_TOKENS > context_tokens:
            return f"basic_window_high_tokens leaves no room for a unit in a context of {context_tokens} tokens"
        return ""


class MiniCPMOOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    checkpoint: str = ""
    """A folder with the files of the published repository, or the id of a repository on the model hub. The Python
    files in it are run by the worker."""
    revision: str = ""
    device: str = "cpu"
    """cpu, cuda or cuda:n."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    threads: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    """Of torch on the CPU; 0: as it likes."""
    vision: bool = False
    vocoder: str = "token2wav"
    """`token2wav`: the model's own, on a GPU only. `none`: answers are text. `module:factory`: another one with the
    same members, made by calling it with the device."""
    ref_audio: str = ""
    """The path of a WAV file: the voice of sessions that send none."""
    max_ref_audio_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 15.0
    """Of a voice; the rest is cut off."""
    instructions: str = "Streaming Omni Conversation."
    """Of sessions that have none."""
    max_instructions: Annotated[int, msgspec.Meta(ge=1, le=16_000)] = 2000
    """Characters."""
    context_tokens: Annotated[int, msgspec.Meta(ge=256, le=40_960)] = 8192
    talker_tokens: Annotated[int, msgspec.Meta(ge=128, le=40_960)] = 4096
    """Positions of one spoken turn; a longer one goes on with a talker that starts anew."""
    speech_state_bytes_per_session: Count = 2 << 30
    force_listen_count: Annotated[int, msgspec.Meta(ge=0, le=600)] = 3
    """The first units of a session (of a committed turn) are listened to, whatever the model would do."""
    max_speak_tokens: Annotated[int, msgspec.Meta(ge=2, le=64)] = 20
    """Of text in one unit."""
    continuation_s: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 60
    """How long the model goes on speaking to a client that sends no sound."""
    sampling: Sampling = Sampling()
    window: Window = Window()

    @property
    def speaks(self) -> bool:
        return self.vocoder != "none"

    @property
    def rollover_tokens(self) -> int:
        """From here on the context is to be replaced at the next occasion, while there is room for what goes on."""
        return self.context_tokens - max(self.context_tokens // 8, SPEAK_TOKENS + MAX_FRAMES * FRAME_TOKENS)

    def check(self) -> str:
        """What is wrong with it beyond types; empty: nothing."""
        if not self.checkpoint:
            return "checkpoint must name a folder or a repository"
        kind = self.device.partition(":")[0]
        if self.device != "cpu" and kind != "cuda":
            return "device must be cpu, cuda or cuda:n"
        if self.vocoder not in ("token2wav", "none") and ":" not in self.vocoder:
            return "vocoder must be token2wav, none or module:factory"
        if self.vocoder == "token2wav" and kind != "cuda":
            return 'vocoder: token2wav runs on a GPU only; on a CPU say "none", or name another one'
        return self.window.problem(self.context_tokens)


def read_options(pipeline: PipelineSpec) -> MiniCPMOOptions:
    """Raises PipelineError, which names the pipeline and the key."""
    try:
        options = msgspec.convert(pipeline.options, MiniCPMOOptions)
    except msgspec.ValidationError as error:
        raise PipelineError(f"pipeline {pipeline.name}: options: {error}") from None
    if problem := options.check():
        raise PipelineError(f"pipeline {pipeline.name}: options: {problem}")
    if len(pipeline.stages) != 1:
        raise PipelineError(f"pipeline {pipeline.name}: this model has one stage")
    if pipeline.rebuild == "history":
        raise PipelineError(f'pipeline {pipeline.name}: rebuild = "history": this model takes no texts; say "input"')
    frames = MAX_FRAMES * FRAME_TOKENS if options.vision else 0
    replayed = pipeline.rebuild_window_s * (LISTEN_TOKENS + frames) if pipeline.rebuild == "input" else 0
    if replayed + _PROMPT_TOKENS > options.rollover_tokens:
        raise PipelineError(
            f"pipeline {pipeline.name}: rebuild_window_s: {pipeline.rebuild_window_s:g} s would fill a context of "
            f"{options.context_tokens} tokens (context_tokens) again"
        )
    return options
