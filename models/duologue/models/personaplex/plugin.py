"""The session half of PersonaPlex: Moshi with a role and a voice, given when the session opens. SANS-I/O.

Rule 1. `instructions` is the role; `voice` is a name from the pipeline's list. Both are spoken to the model before
        it hears anybody, so both are fixed at open.
Rule 2. No path and no file comes from a client.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from duologue.model.pipeline import PipelineSpec
from duologue.models.moshi.options import read_options
from duologue.models.moshi.plugin import Moshi
from duologue.models.moshi.wire import SlotConfig
from duologue.models.personaplex.options import PersonaPlexOptions
from duologue.protocol.duplex import RealtimeProtocolError, SessionConfig


class PersonaPlex(Moshi):
    """`personaplex`."""

    name: ClassVar[str] = "personaplex"

    _options: PersonaPlexOptions

    def _read(self, pipeline: PipelineSpec) -> PersonaPlexOptions:
        return read_options(pipeline, PersonaPlexOptions)

    def _validate_role(self, config: SessionConfig, current: SessionConfig | None) -> None:
        if config.voice is not None and config.voice not in self._options.voices:
            known = ", ".join(self._options.voices) or "none"
            raise self._unsupported(f"has no voice {config.voice!r}; there are: {known}", "voice")
        limit = self._options.max_instructions
        if len(config.instructions or "") > limit:
            raise self._unsupported(f"takes instructions of at most {limit} characters", "instructions")
        if current is None:
            return
        if self._role(config) != self._role(current):
            raise RealtimeProtocolError(
                "persona_update_unsupported", "the role is fixed when the session opens", param="session.instructions"
            )
        if self._voice(config) != self._voice(current):
            raise RealtimeProtocolError(
                "voice_update_unsupported", "the voice is fixed when the session opens", param="session.voice"
            )

    def _role(self, config: SessionConfig) -> str:
        return self._options.instructions if config.instructions is None else config.instructions

    def _voice(self, config: SessionConfig) -> str:
        return config.voice or self._options.usual_voice

    def _slot(self, config: SessionConfig) -> SlotConfig:
        return msgspec.structs.replace(super()._slot(config), voice=self._voice(config), prompt=self._role(config))
