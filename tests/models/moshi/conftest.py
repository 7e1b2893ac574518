"""Engines on tiny checkpoints. Without the environment of the model (`make env NAME=moshi`) its tests are skipped."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault("NO_TORCH_COMPILE", "1")

if TYPE_CHECKING:
    from models.moshi.rig import Rig


@pytest.fixture(scope="session")
def environment() -> None:
    for name in ("torch", "moshi", "sentencepiece"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: `make env NAME=moshi`, and run these tests there")


@pytest.fixture(scope="session")
def rig(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Moshi with four slots, warm."""
    from models.moshi.rig import Rig
    from models.moshi.tiny import pipeline_toml, write_moshi

    from duologue.model.catalog import find_pipeline
    from duologue.models.moshi.engine import MoshiEngine, build

    folder = write_moshi(tmp_path_factory.mktemp("moshi"))
    engine = build(find_pipeline(str(pipeline_toml(folder, "moshi"))), 0)
    assert isinstance(engine, MoshiEngine)
    engine.warm_up()
    yield Rig(engine)
    engine.shut_down()
