"""From pipeline files to warm engines: which stages a worker group has, and how they are brought up.

Rule 1. The environment of a stage is set before its engine's module is imported: libraries read it then.
Rule 2. Engines are loaded one after another, off the loop, in the order of their pipelines and stages.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from duologue.model.engine import StageEngine
from duologue.model.pipeline import PipelineError, PipelineSpec, resolve
from duologue.stages.hosted import HostedStage, StageSink


def stages_of(pipelines: Sequence[PipelineSpec], group: str) -> list[tuple[PipelineSpec, int]]:
    """The stages that live in this worker group. Raises PipelineError if there are none."""
    found = [(pipeline, index) for pipeline in pipelines for index in pipeline.stages_of(group)]
    if not found:
        known = ", ".join(dict.fromkeys(name for pipeline in pipelines for name in pipeline.workers))
        raise PipelineError(f"no stage of these pipelines belongs to worker {group!r}; there are: {known}")
    return found


def build(pipeline: PipelineSpec, index: int) -> StageEngine:
    """Load one engine and run it once. Raises PipelineError, or whatever the model's library raises."""
    spec = pipeline.stages[index]
    os.environ.update(spec.environment)
    engine = resolve(spec.engine)(pipeline, index)
    if not isinstance(engine, StageEngine):
        raise PipelineError(f"pipeline {pipeline.name}: {spec.engine} did not make a StageEngine")
    engine.max_batch = spec.max_batch
    return engine


async def load(
    pipelines: Sequence[PipelineSpec], group: str, loop: asyncio.AbstractEventLoop, sink: StageSink
) -> list[HostedStage]:
    """All stages of a group, warm."""
    hosted = []
    for pipeline, index in stages_of(pipelines, group):
        engine = await asyncio.to_thread(build, pipeline, index)
        stage = HostedStage(pipeline.name, index, pipeline.stages[index], engine, loop, sink)
        await asyncio.to_thread(engine.warm_up)
        hosted.append(stage)
    return hosted
