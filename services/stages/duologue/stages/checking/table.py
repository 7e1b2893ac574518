"""The `[check]` table of a pipeline: how its model is exercised, and what it cannot promise.

[check]
units = 24                     # ticks of one conversation: units of input, and of silence while it answers
sessions = 3                   # side by side, in one batch
prompt = "Hello, who are you?" # what the user says, of a model that answers plans
sound = "question.wav"         # beside the file; empty: sound is made
deterministic = false          # the same input may be answered another way
why = "it samples"             # shown with what is declared
stop_steps = 0                 # steps in which a cancelled answer may still make something
context_units = 0              # so many units fill its context; 0: it has none to fill
linger_ms = 0                  # after each tick, wait until nothing was made between appends for so long
patience_s = 30                # the longest silence of an engine that has not answered
[check.options]                # over those of the pipeline
[check.session]                # the session object of its client
[check.failing]                # the same, of a session of which units fail
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from duologue.model.pipeline import PipelineError, PipelineSpec

Count = Annotated[int, msgspec.Meta(ge=1)]
Number = Annotated[int, msgspec.Meta(ge=0)]


class CheckTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module."""

    units: Count = 24
    sessions: Annotated[int, msgspec.Meta(ge=2)] = 3
    prompt: str = "Hello, who are you?"
    sound: str = ""
    deterministic: bool = True
    why: str = ""
    stop_steps: Number = 0
    context_units: Number = 0
    linger_ms: Number = 0
    patience_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    options: dict[str, Any] = {}
    session: dict[str, Any] = {}
    failing: dict[str, Any] = {}


def check_table(pipeline: PipelineSpec) -> CheckTable:
    """Raises PipelineError, which names the key."""
    try:
        return msgspec.convert(pipeline.check, CheckTable)
    except msgspec.ValidationError as error:
        raise PipelineError(f"pipeline {pipeline.name}: check: {error}") from None


def as_checked(pipeline: PipelineSpec, table: CheckTable) -> PipelineSpec:
    """The pipeline with the options that the table puts over its own, table by table."""
    return msgspec.structs.replace(pipeline, options=_over(pipeline.options, table.options))


def _over(options: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    merged = dict(options)
    for key, value in others.items():
        below = merged.get(key)
        merged[key] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def sound_path(pipeline: PipelineSpec, table: CheckTable, folder: Path) -> Path | None:
    """The WAV file that is spoken, if one is named; relative to the folder of the pipeline's file."""
    if not table.sound:
        return None
    path = folder / table.sound
    if not path.is_file():
        raise PipelineError(f"pipeline {pipeline.name}: check.sound: there is no file {path}")
    return path
