"""The engines of the cascade, loaded once for the tests that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.models.cascade.harness import Engines


@pytest.fixture(scope="package")
def engines() -> Iterator[Engines]:
    loaded = Engines()
    yield loaded
    loaded.close()
