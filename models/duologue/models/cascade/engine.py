"""The worker half of the cascade: builds the engine of each stage. Only stage workers import this."""

from __future__ import annotations

from duologue.model.engine import StageEngine
from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.models.cascade.parts import need_runtime
from duologue.models.cascade.settings import Settings, settings_of

STAGES = ("perception", "recognition", "thinker", "speech")


def build(pipeline: PipelineSpec, stage_index: int) -> StageEngine:
    """The engine of one stage, not warm yet. Raises PipelineError: wrong options, or a part is missing."""
    settings = settings_of(pipeline)
    if tuple(stage.name for stage in pipeline.stages) != STAGES:
        raise PipelineError(f"{pipeline.name}: the stages must be {', '.join(STAGES)}, in this order")
    stage = pipeline.stages[stage_index]
    engine = _build(stage.name, settings, stage.slots)
    engine.max_batch = stage.max_batch
    return engine


def _build(stage: str, settings: Settings, slots: int) -> StageEngine:
    """Imports what this stage needs and no more: a voice worker needs no recogniser."""
    need_runtime("numpy")
    if stage == "perception":
        need_runtime("onnxruntime")
        from duologue.models.cascade.engines.perception import PerceptionEngine

        return PerceptionEngine(settings, slots)
    if stage == "recognition":
        need_runtime("ctranslate2", "tokenizers")
        from duologue.models.cascade.engines.recognition import RecognitionEngine

        return RecognitionEngine(settings, slots)
    if stage == "thinker":
        from duologue.models.cascade.engines.thinker import ThinkerEngine

        return ThinkerEngine(settings, slots)
    need_runtime("hibari", "onnxruntime")
    from duologue.models.cascade.engines.speech import SpeechEngine

    return SpeechEngine(settings, slots)
