"""docs/protocol.md says what the code says."""

from __future__ import annotations

from pathlib import Path

import generate
import pytest
from unit.protocol.event_samples import SAMPLES

from duologue.protocol.duplex import Dialect, SessionConfig, SessionView, project
from duologue.protocol.duplex.projection import shown_as

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs"


def test_the_tables_are_up_to_date() -> None:
    written = (DOCS / "protocol.md").read_text()
    assert generate.page(written) == written, "run: python docs/generate.py"


@pytest.mark.parametrize("dialect", Dialect)
def test_the_names_told_are_the_names_shown(dialect: Dialect) -> None:
    view = SessionView("duplex-1", SessionConfig.provisional(dialect, model="m"))
    for event, _ in SAMPLES:
        name = shown_as(type(event), dialect)
        bodies = project(event, dialect, view)
        assert bool(bodies) == (name is not None)
        assert all(body.startswith(f'{{"type":"{name}",'.encode()) for body in bodies)
