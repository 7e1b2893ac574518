"""For all tests: what a session tells a stock client is judged as it is projected (`dialect_judge`)."""

from __future__ import annotations

from collections.abc import Iterator

import dialect_judge
import pytest

from duologue.session.core import context


@pytest.fixture(scope="session", autouse=True)
def _events_are_judged() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "project", dialect_judge.judging)
        yield


@pytest.fixture(autouse=True)
def _no_event_is_refused() -> Iterator[None]:
    dialect_judge.found.clear()
    yield
    assert not dialect_judge.found, "\n".join(dialect_judge.found)
