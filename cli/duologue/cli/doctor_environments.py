"""What `duologue doctor` says of the environments of the stage workers: one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from duologue.model.catalog import find_pipeline
from duologue.model.environments import how_to_make, interpreter, probe
from duologue.model.pipeline import PipelineError, PipelineSpec


class Environment(msgspec.Struct, frozen=True):
    """What was found in one. `problems` is empty if all is there. `fatal`: `duologue up` refuses to start then."""

    what: str
    problems: tuple[str, ...]
    advice: str = ""
    fatal: bool = True


def look_at_environments(references: Sequence[str]) -> Iterator[Environment]:
    """Run the interpreter of every worker group of these pipelines, each environment of a pipeline once."""
    for reference in references:
        try:
            pipeline = find_pipeline(reference)
        except PipelineError as error:
            yield Environment(f"pipeline {reference}", (str(error),), "name an installed pipeline or a TOML file")
            continue
        for venv in dict.fromkeys(map(pipeline.venv_of, pipeline.workers)):
            yield _look(pipeline, venv)


def _look(pipeline: PipelineSpec, venv: str) -> Environment:
    name = f"environment {venv!r}" if venv else "this environment"
    what = f"pipeline {pipeline.name}: {name}"
    stages = [stage for stage in pipeline.stages if stage.venv == venv]
    requires = tuple(dict.fromkeys(requirement for stage in stages for requirement in stage.requires))
    modules = list(dict.fromkeys(stage.engine.partition(":")[0] for stage in stages))
    environ = {key: value for stage in stages for key, value in stage.environment.items()}
    how = how_to_make(venv, requires) if venv else "pip install what is missing"
    try:
        found = probe(interpreter(pipeline, stages[0].worker), requires, modules, environ)
    except PipelineError as error:
        return Environment(what, (str(error),), f"{how}; or serve other models with --pipelines")
    held = ", ".join(("", *requires))
    what += f", Python {found.version}{held}"
    problems = (*found.missing, *found.failed)
    return Environment(what, problems, f"{how}; or serve other models with --pipelines", fatal=bool(venv))
