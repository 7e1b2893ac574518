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
venv = "moshi"                 # the environment of its worker; see `model.environments`
requires = ["moshi==0.2.13"]
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
    """How many workers of this stage's group `duologue up` runs; the largest number in the group counts."""
    gather_ms: float = 0.0
    """How long a step may wait, after the first unit is ready, for those of other sessions that are about to come. It
    ends early when every session that is expected within it has its unit, or the batch is full."""
    environment: dict[str, str] = {}
    options: dict[str, Any] = {}
    venv: str = ""
    """The virtual environment of its worker: a name below the environments' folder (`.envs` beside the checkout by
    default; the variable DUOLOGUE_ENVS), or an absolute folder. Empty: the environment of whoever starts it."""
    requires: tuple[str, ...] = ()
    """Packages that must be in that environment, each with its exact version (`name==version`)."""


class PipelineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    plugin: str
    stages: tuple[StageSpec, ...]
    session_mode: Literal["duplex", "turn"] = "duplex"
    """turn: its sessions answer committed turns only, whether the model could decide its own turns or not."""
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

    check: dict[str, Any] = {}
    """For `duologue model check` alone: how this model is exercised, and what it cannot promise (docs/models.md)."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The worker groups, in stage order, each once."""
        return tuple(dict.fromkeys(stage.worker for stage in self.stages))

    def stages_of(self, worker: str) -> tuple[int, ...]:
        """The indices of the stages that live in this worker group."""
        return tuple(i for i, stage in enumerate(self.stages) if stage.worker == worker)

    def venv_of(self, worker: str) -> str:
        """The environment of this worker group (`StageSpec.venv`)."""
        return next((stage.venv for stage in self.stages if stage.worker == worker), "")

    def requires_of(self, worker: str) -> tuple[str, ...]:
        """What must be installed in the environment of this worker group."""
        return tuple(dict.fromkeys(name for i in self.stages_of(worker) for name in self.stages[i].requires))


def load_pipeline(path: Path) -> PipelineSpec:
    """Read one TOML file. Raises PipelineError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        spec = msgspec.convert(document, PipelineSpec)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PipelineError(f"{path}: {error}") from None
    if not spec.stages:
        raise PipelineError(f"{path}: a pipeline needs at least one [[stages]] table")
    for worker in spec.workers:
        _check_environment(path, spec, worker)
    return spec


def _check_environment(path: Path, spec: PipelineSpec, worker: str) -> None:
    """The stages of one worker group are one process: they cannot differ in their environment."""
    venv = spec.venv_of(worker)
    if "/" in venv and not venv.startswith("/"):
        raise PipelineError(f"{path}: venv of worker {worker!r} is a name or an absolute folder, not {venv!r}")
    versions: dict[str, str] = {}
    for index in spec.stages_of(worker):
        stage = spec.stages[index]
        where = f"{path}: stages[{index}] ({stage.name})"
        if stage.venv != venv:
            raise PipelineError(
                f"{where}: venv is {stage.venv!r}, and {venv!r} in another stage of its process, worker {worker!r}"
            )
        for requirement in stage.requires:
            name, equals, version = requirement.partition("==")
            if not name or not equals or not version:
                raise PipelineError(f"{where}: requires: {requirement!r} is not `name==version`")
            if versions.setdefault(name, version) != version:
                raise PipelineError(
                    f"{where}: requires {requirement}, and another stage of worker {worker!r} {name}=={versions[name]}"
                )


def resolve(reference: str) -> Any:
    """The object that `package.module:name` names. Raises PipelineError."""
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PipelineError(f"{reference}: {error}") from None
