"""Which of the three projections of a session a client gets."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

_ON = frozenset({"1", "true", "on"})


class Dialect(StrEnum):
    """Fixed when the session opens, stored with it, and required again on resume."""

    duplex = "duplex"
    openai = "openai"
    openai_beta = "openai-beta"

    @property
    def is_openai(self) -> bool:
        """True of both OpenAI dialects."""
        return self is not Dialect.duplex

    @classmethod
    def choose(cls, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Dialect:
        """`/v1/duplex` and `duplex=1|true|on` are duplex; else the `OpenAI-Beta: realtime=v1` header decides.

        `headers` may be in any case.
        """
        if path.rstrip("/").endswith("/duplex") or query.get("duplex", "").strip().lower() in _ON:
            return cls.duplex
        beta = next((value for name, value in headers.items() if name.lower() == "openai-beta"), "")
        asked = {part.strip().lower().replace(" ", "") for part in beta.split(",")}
        return cls.openai_beta if "realtime=v1" in asked else cls.openai
