"""The `[options]` of a Moshi pipeline, typed. Used by both halves; imports no engine library.

A wrong key or value is a PipelineError that names it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec

from duologue.model.pipeline import PipelineError, PipelineSpec

RATE_HZ: Final = 24_000
UNIT_MS: Final = 80
FRAME: Final = RATE_HZ * UNIT_MS // 1000
"""Samples of one frame, in and out."""
MAX_WAITING: Final = 64
"""Frames of one session that wait in the engine (for its opening); one more fails with `stage_backlog`."""
MAX_TOP_K: Final = 250
"""How many candidates a token may be drawn from: the noise of a slot is made for so many."""

Temperature = Annotated[float, msgspec.Meta(ge=0.0, le=2.0)]
TopK = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOP_K)]
_Ms = Annotated[int, msgspec.Meta(ge=UNIT_MS, le=60_000)]


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are drawn; the defaults are the package's. A temperature of 0 takes the likeliest."""

    temperature_audio: Temperature = 0.8
    temperature_text: Temperature = 0.7
    top_k_audio: TopK = 250
    top_k_text: TopK = 25


class Talking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the model counts as speaking. It makes sound in every frame, and says nothing of turns."""

    loudness: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 0.02
    """A frame of at least this RMS is speech, text or none; over 1: text alone decides."""
    pause_ms: _Ms = 960
    """Neither text nor loud sound for so long ends what is being said."""
    hush_ms: _Ms = 8000
    """After a hard stop the model is not heard until it pauses, and for no longer than this."""


class MoshiOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    checkpoint: str = ""
    """A folder with the files of the published repository, or the id of a repository on the model hub."""
    revision: str = ""
    device: str = "cpu"
    """cpu, cuda or cuda:n."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the language model; the codec is float32 always."""
    threads: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    """Of the engine's library on the CPU; 0: as the library likes."""
    sampling: Sampling = Sampling()
    talking: Talking = Talking()
    continuation_s: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 30
    """How long the model goes on speaking to a client that sends no sound."""

    def check(self) -> str:
        """What is wrong with it beyond types; empty: nothing."""
        if not self.checkpoint:
            return "checkpoint must name a folder or a repository"
        if self.device != "cpu" and self.device.partition(":")[0] != "cuda":
            return "device must be cpu, cuda or cuda:n"
        return ""


OptionsT = TypeVar("OptionsT", bound=MoshiOptions)


def read_options(pipeline: PipelineSpec, kind: type[OptionsT]) -> OptionsT:
    """Raises PipelineError, which names the pipeline and the key."""
    try:
        options = msgspec.convert(pipeline.options, kind)
    except msgspec.ValidationError as error:
        raise PipelineError(f"pipeline {pipeline.name}: options: {error}") from None
    if problem := options.check():
        raise PipelineError(f"pipeline {pipeline.name}: options: {problem}")
    if len(pipeline.stages) != 1:
        raise PipelineError(f"pipeline {pipeline.name}: this model has one stage")
    return options
