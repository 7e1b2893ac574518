"""The one stage of PersonaPlex: Moshi's, with an opening in which the model is given its voice and its role."""

from __future__ import annotations

from collections.abc import Sequence

from duologue.model.engine import StageEngine, StageRefused
from duologue.model.pipeline import PipelineSpec
from duologue.models.moshi.batch import Forced
from duologue.models.moshi.checkpoint import Checkpoint
from duologue.models.moshi.engine import MoshiEngine, Place
from duologue.models.moshi.options import read_options
from duologue.models.moshi.wire import SlotConfig
from duologue.models.personaplex.options import PersonaPlexOptions
from duologue.models.personaplex.timeline import Voice, opening
from duologue.models.personaplex.voices import load_voices
from duologue.models.personaplex.weights import load


def build(pipeline: PipelineSpec, stage_index: int) -> StageEngine:
    """Raises PipelineError for options that it does not know and files that are not there."""
    return PersonaPlexEngine(pipeline, read_options(pipeline, PersonaPlexOptions))


class PersonaPlexEngine(MoshiEngine):
    """See the module."""

    options: PersonaPlexOptions

    def __init__(self, pipeline: PipelineSpec, options: PersonaPlexOptions) -> None:
        super().__init__(pipeline, options)
        self._voices: dict[str, Voice] = {}

    def load(self) -> Checkpoint:
        loaded = load(self.options)
        self._voices = load_voices(self.options, loaded.lm.dim)
        return loaded

    def opening(self, settings: SlotConfig, place: Place) -> Sequence[Forced]:
        voice = self._voices.get(settings.voice)
        if settings.voice and voice is None:
            raise StageRefused("invalid_duplex_runtime_config", f"this worker has no voice {settings.voice!r}")
        role = self._loaded.tokenizer.encode(f"<system> {settings.prompt.strip()} <system>") if settings.prompt else []
        frames = opening(voice, role, self._loaded.lm.delays, self._loaded.lm.initial_token_id)
        if len(frames) >= self._context:
            raise StageRefused(
                "invalid_duplex_runtime_config",
                f"session.instructions: the role is {len(role)} tokens, and the context {self._context} frames",
            )
        place.prompt_tokens = len(role)
        return frames
