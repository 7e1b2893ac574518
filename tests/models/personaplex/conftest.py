"""An engine on a tiny checkpoint in the published format. Without the environment of the model it is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault("NO_TORCH_COMPILE", "1")

if TYPE_CHECKING:
    from models.moshi.rig import Rig


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """PersonaPlex with four slots and two voices, warm."""
    from models.moshi.rig import Rig
    from models.moshi.tiny import VOICED, pipeline_toml, write_personaplex

    from duologue.model.catalog import find_pipeline
    from duologue.models.personaplex.engine import PersonaPlexEngine, build

    folder = write_personaplex(tmp_path_factory.mktemp("personaplex"))
    engine = build(find_pipeline(str(pipeline_toml(folder, "personaplex", extra=VOICED))), 0)
    assert isinstance(engine, PersonaPlexEngine)
    engine.warm_up()
    yield Rig(engine)
    engine.shut_down()
