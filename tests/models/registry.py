"""The models of `registry.toml`, typed; see there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

REGISTRY = Path(__file__).parent / "registry.toml"
ROOT = Path(__file__).parents[2]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    pipeline: str = ""
    builder: tuple[str, ...] = ()
    environment: str = ""
    check: str = ""
    upstream: str = ""
    ci: bool = True
    timeout_s: float = 420.0

    def __post_init__(self) -> None:
        if bool(self.pipeline) == bool(self.builder):
            raise ValueError(f"{self.name}: either `pipeline` or `builder`")
        for path in (*self.builder[:1], *filter(None, [self.check])):
            if not (ROOT / path).is_file():
                raise ValueError(f"{self.name}: there is no {path}")


class Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: tuple[Model, ...]


def models(path: Path = REGISTRY) -> tuple[Model, ...]:
    """In their order. Raises msgspec.ValidationError, which names the key."""
    return msgspec.convert(tomllib.loads(path.read_text()), Registry).model
