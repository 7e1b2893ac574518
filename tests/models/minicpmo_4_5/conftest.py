"""The engine on a tiny checkpoint. Without the environment of the model (`make env NAME=minicpmo`) it is skipped."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

if TYPE_CHECKING:
    from models.minicpmo_4_5.rig import Rig


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("torch", "transformers", "soxr", "PIL"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: `make env NAME=minicpmo`, and run these tests there")
    import transformers

    if transformers.__version__ != "4.51.0":
        pytest.skip(f"transformers {transformers.__version__} is not that of the environment `minicpmo`")
    # Code that is loaded from a checkpoint is copied there first.
    from transformers.utils import hub

    os.environ["HF_MODULES_CACHE"] = str(tmp_path_factory.mktemp("modules"))
    hub.HF_MODULES_CACHE = os.environ["HF_MODULES_CACHE"]
    from transformers import dynamic_module_utils

    dynamic_module_utils.HF_MODULES_CACHE = os.environ["HF_MODULES_CACHE"]


Make = Callable[..., "Rig"]


@pytest.fixture(scope="session")
def make_rig(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Warm engines, made once for the options that they are asked with."""
    from models.minicpmo_4_5.rig import warm

    made: dict[str, Rig] = {}

    def make(*, vision: bool = False, separate: bool = False, **options: Any) -> Rig:
        key = repr((vision, separate, sorted(options.items())))
        if key not in made:
            folder: Path = tmp_path_factory.mktemp(f"minicpmo{len(made)}")
            made[key] = warm(folder, vision=vision, separate=separate, options=options)
        return made[key]

    yield make
    for rig in made.values():
        rig.engine.shut_down()


@pytest.fixture
def rig(make_rig: Make) -> Iterator[Rig]:
    """Four slots, all free."""
    one = make_rig()
    yield one
    one.close_all()
