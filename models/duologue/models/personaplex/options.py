"""The `[options]` of a PersonaPlex pipeline: those of Moshi, and the voices. Imports no engine library."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from duologue.models.moshi.options import MoshiOptions

PUBLISHED: Final = tuple(
    f"{kind}{n}" for kind, count in (("NATF", 4), ("NATM", 4), ("VARF", 5), ("VARM", 5)) for n in range(count)
)
"""The voices of `nvidia/personaplex-7b-v1`."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class PersonaPlexOptions(MoshiOptions, frozen=True, forbid_unknown_fields=True):
    voices: tuple[str, ...] = PUBLISHED
    """What a session may ask for. A name, never a path: the file is `<name>.pt` of the checkpoint."""
    voice: str = ""
    """Of a session that asks for none; empty: the first."""
    instructions: str = "You enjoy having a good conversation."
    """Of a session that has none."""
    max_instructions: Annotated[int, msgspec.Meta(ge=1, le=20_000)] = 4000
    """Characters. Each token of them is a step before the session can speak, and a frame of its context."""

    def check(self) -> str:
        if problem := super().check():
            return problem
        for name in self.voices:
            if not _NAME.fullmatch(name):
                return f"voices: {name!r} is no name (letters, digits, - and _)"
        if self.voice and self.voice not in self.voices:
            return f"voice: {self.voice!r} is not one of voices"
        return ""

    @property
    def usual_voice(self) -> str:
        """Empty: the model speaks without a voice prompt."""
        return self.voice or (self.voices[0] if self.voices else "")
