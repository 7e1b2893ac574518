"""The judge of all events is one that refuses."""

from __future__ import annotations

from typing import Any

import dialect_judge
import pytest
from unit.session.core.session_world import World, types

from duologue.protocol.duplex import AudioDelta, Dialect, SessionHeartbeat

pytestmark = pytest.mark.unit

SCOPE = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0, "event_id": "e"}


@pytest.mark.parametrize(
    ("event", "dialect"),
    [
        ({"type": "response.listen", "event_id": "e"}, Dialect.openai),
        ({"type": "response.audio.delta", "delta": "", **SCOPE}, Dialect.openai),
        ({"type": "response.output_audio.delta", **SCOPE}, Dialect.openai),
        ({"type": "response.output_audio.delta", "delta": "", **SCOPE}, Dialect.openai_beta),
        ({"type": "conversation.item.done", "event_id": "e", "item": {}}, Dialect.openai_beta),
        ({"type": "response.audio.delta", **SCOPE}, Dialect.openai_beta),
    ],
)
def test_what_is_no_event_of_the_dialect_is_refused(event: dict[str, Any], dialect: Dialect) -> None:
    assert event["type"] in dialect_judge.complaint(event, dialect)


@pytest.mark.parametrize("dialect", [Dialect.openai, Dialect.openai_beta])
def test_every_event_of_a_session_is_looked_at(dialect: Dialect) -> None:
    before = dialect_judge.judged[dialect]
    world = World(dialect=dialect)
    assert dialect_judge.judged[dialect] == before + len(world.events) > before


def test_a_session_cannot_swallow_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core turns an exception into an event; what the judge has found stays."""
    world = World(dialect=Dialect.openai)
    monkeypatch.setattr(dialect_judge, "project", lambda event, dialect, view: [b'{"type":"response.listen"}'])
    world.send(SessionHeartbeat())
    assert dialect_judge.found and "response.listen" in dialect_judge.found[0]
    dialect_judge.found.clear()
    assert types(world.events)[-1] == "response.listen"


def test_the_table_of_the_beta_is_of_events_that_we_have() -> None:
    assert str(AudioDelta.__struct_config__.tag) in dialect_judge.BETA_NAMES
    assert {name for name in dialect_judge.BETA_NAMES.values() if name} <= set(dialect_judge.BETA)
