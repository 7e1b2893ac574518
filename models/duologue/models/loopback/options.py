"""The `[options]` of a loopback pipeline. SANS-I/O."""

from __future__ import annotations

import msgspec

from duologue.model.pipeline import PipelineError, PipelineSpec

STAGES = 4


class LoopbackOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unit_ms: int = 80
    talk: bool = False
    """Answers every committed turn, and takes no script."""
    context_units: int = 4096


def read_options(pipeline: PipelineSpec) -> LoopbackOptions:
    """Raises PipelineError, which names the pipeline and the key."""
    try:
        options = msgspec.convert(pipeline.options, LoopbackOptions)
    except msgspec.ValidationError as error:
        raise PipelineError(f"pipeline {pipeline.name}: options: {error}") from None
    if not 20 <= options.unit_ms <= 2000:
        raise PipelineError(f"pipeline {pipeline.name}: options: unit_ms must be from 20 to 2000")
    if len(pipeline.stages) != STAGES:
        raise PipelineError(f"pipeline {pipeline.name}: the loopback model has {STAGES} stages")
    return options
