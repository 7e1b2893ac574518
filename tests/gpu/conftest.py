"""Set before the package is imported, which reads it then: compiling small functions pays on a GPU only."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

os.environ.setdefault("NO_TORCH_COMPILE", "1")


def load_bench(name: str) -> ModuleType:
    """A script of `bench/gpu`, as a module."""
    spec = importlib.util.spec_from_file_location(
        f"bench_gpu_{name}", Path(__file__).parents[2] / "bench" / "gpu" / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
