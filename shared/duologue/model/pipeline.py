"""A pipeline: the stages of one model, as a TOML file names them.

name = "loopback"
plugin = "duologue.models.loopback.plugin:Loopback"
max_sessions = 256
[options]                      # given to the plugin and to every engine
unit_ms = 80
[[stages]]
name = "hear"
engine = "duologue.models.loopback.engine:build"
worker = "loopback-a"          # stages with the same name share a process
slots = 256
max_batch = 8
deadline_ms = 30000
"""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec


class PipelineError(ValueError):
    """A pipeline file that cannot be used; the message names the file and the key."""


class StageSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    engine: str
    worker: str
    slots: int = 64
    max_batch: int = 8
    deadline_ms: int = 30_000
    replicas: int = 1
    gather_ms: float = 0.0
    """How long a step may wait, after the first unit is ready, for those of other sessions that are about to come. It
    ends early when every session that is expected within it has its unit, or the batch is full."""
    environment: dict[str, str] = {}
    options: dict[str, Any] = {}


class PipelineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    plugin: str
    stages: tuple[StageSpec, ...]
    session_mode: Literal["duplex", "turn"] = "duplex"
    max_sessions: int = 256
    rebuild: Literal["input", "history", "none"] = "none"
    """How a new worker is given the context that is lost with the old one: from the sound that was heard (`input`, at
    most the last `rebuild_window_s` of it), from the conversation (`history`), or not at all."""
    rebuild_window_s: float = 20.0
    pipelined: bool = True
    """False: a unit enters the first stage only when the one before it has left the last."""
    max_output_lead_ms: int = 0
    """How far ahead of real time audio is delivered; 0: as it is made."""
    description: str = ""
    options: dict[str, Any] = {}
    max_chat_turns: int = 0
    """Turns of `/v1/chat/completions` that a shard carries out at once, beside its sessions; 0: none are served.
    They use slots of the stages, so `slots` should be this much more than `max_sessions`."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The worker groups, in stage order, each once."""
        return tuple(dict.fromkeys(stage.worker for stage in self.stages))

    def stages_of(self, worker: str) -> tuple[int, ...]:
        """The indices of the stages that live in this worker group."""
        return tuple(i for i, stage in enumerate(self.stages) if stage.worker == worker)


def load_pipeline(path: Path) -> PipelineSpec:
    """Read one TOML file. Raises PipelineError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        spec = msgspec.convert(document, PipelineSpec)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PipelineError(f"{path}: {error}") from None
    if not spec.stages:
        raise PipelineError(f"{path}: a pipeline needs at least one [[stages]] table")
    return spec


def resolve(reference: str) -> Any:
    """The object that `package.module:name` names. Raises PipelineError."""
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PipelineError(f"{reference}: {error}") from None
