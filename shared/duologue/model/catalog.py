"""Finds pipeline files: by the name of an installed model, or by path.

A model package keeps the TOML files of its pipelines beside its code; the name of a pipeline is the name of
its file. Nothing of a model is imported to find it.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from duologue.model.pipeline import PipelineError, PipelineSpec, load_pipeline

_MODELS = "duologue.models"
_SUFFIX = ".toml"


def installed() -> dict[str, Path]:
    """Every pipeline file that comes with an installed model, by name, in order of the names."""
    found: dict[str, Path] = {}
    for package in _packages():
        for entry in package.iterdir():
            if entry.name.endswith(_SUFFIX) and isinstance(entry, Path):
                found.setdefault(entry.name.removesuffix(_SUFFIX), entry)
    return dict(sorted(found.items()))


def find_pipeline(name_or_path: str) -> PipelineSpec:
    """The pipeline of this name among the installed models, or in this file.

    What ends in `.toml` or has a slash in it is a path. Raises PipelineError, which names what there is.
    """
    path = pipeline_path(name_or_path)
    spec = load_pipeline(path)
    if not _is_path(name_or_path) and spec.name != name_or_path:
        raise PipelineError(f"{path}: the name in it is {spec.name!r}")
    return spec


def pipeline_path(name_or_path: str) -> Path:
    """The file of this pipeline. Raises PipelineError, which names what there is."""
    if _is_path(name_or_path):
        return Path(name_or_path)
    known = installed()
    path = known.get(name_or_path)
    if path is None:
        names = ", ".join(known) or "none"
        raise PipelineError(f"no pipeline {name_or_path!r}; installed: {names}; a path ends in {_SUFFIX}")
    return path


def _is_path(name_or_path: str) -> bool:
    return name_or_path.endswith(_SUFFIX) or "/" in name_or_path


def _packages() -> list[Traversable]:
    try:
        root = files(_MODELS)
    except ModuleNotFoundError:
        return []
    return sorted((entry for entry in root.iterdir() if entry.is_dir()), key=lambda entry: entry.name)
