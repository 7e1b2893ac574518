"""What a simulated client takes for lost, and what it insists on: a cancel excuses no more than it may have dropped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from simulation.commands import CROWD, Commands
from simulation.record import Record
from simulation.world import World

pytestmark = pytest.mark.sim


class Session:
    """A client's books, with a clock that stands."""

    def __init__(self) -> None:
        self.world = SimpleNamespace(now=10.0, weather=SimpleNamespace(late=False))
        self.record = Record(cast(World, cast(Any, self.world)), 0, 0)
        self.commands = Commands("c", self.record)
        self.receives("session.updated")

    def sends(self, kind: str) -> None:
        self.commands.add(kind, 0, {})

    def receives(self, *kinds: str) -> None:
        for kind in kinds:
            self.record.received({"type": kind, "server_event_seq": self.record.seq + 1})


@pytest.mark.parametrize(("under_way", "excused"), [(CROWD, True), (CROWD - 2, False)])
def test_a_commit_before_a_cancel_is_excused_only_while_much_is_under_way(under_way: int, excused: bool) -> None:
    session = Session()
    session.sends("input_audio_buffer.commit")
    session.world.now += 0.1  # what came by now is known as delivered
    session.sends("input.cancel")
    session.receives(*["response.listen"] * under_way, "input_audio_buffer.cleared")
    assert bool(session.commands.unanswered()) is not excused


def test_what_came_before_the_cancel_was_sent_or_after_its_answer_excuses_nothing() -> None:
    session = Session()
    session.receives(*["response.listen"] * 100)
    session.world.now += 0.1
    session.sends("input_audio_buffer.commit")
    session.sends("input.cancel")
    session.receives("input_audio_buffer.cleared", *["response.listen"] * 100)
    assert session.commands.unanswered() == {"input_audio_buffer.commit": (0, 1)}


def test_a_commit_after_the_cancel_is_due() -> None:
    session = Session()
    session.sends("input.cancel")
    session.sends("input_audio_buffer.commit")
    session.receives(*["response.listen"] * 100, "input_audio_buffer.cleared")
    assert session.commands.unanswered() == {"input_audio_buffer.commit": (0, 1)}
