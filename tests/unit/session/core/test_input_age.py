"""A model that is slower than real time: its session gets no further behind than the limit."""

from __future__ import annotations

import pytest
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, pick

from duologue.model.outputs import ModelOutput
from duologue.protocol.duplex import CancelInput

pytestmark = pytest.mark.unit

LIMIT_S = 8.0
MARKS = 4 * LIMIT_S + 1


def test_a_slow_model_gets_no_further_behind_than_the_limit() -> None:
    """A unit of 80 ms takes it 100 ms. For a minute: the delay is capped, what is refused says when to try again."""
    world = World(FakeModel(max_in_flight=2), auto=True)
    refused, behind = 0, 0.0
    for n in range(750):
        for event in pick(world.say(80), "error"):
            error = event["error"]
            assert (error["code"], error["param"], error["retryable"]) == ("input_backpressure", "audio", True)
            assert error["retry_after_ms"] == 500
            refused += 1
        world.advance(0.08)
        if n % 5 != 4:
            world.answer(ModelOutput(listen=True))
        sound = world.machine._ctx.state.sound
        behind = max(behind, len(sound.feed.pcm) / 4 / 16_000)
        assert len(sound.marks) <= MARKS
    assert 6.0 < behind <= LIMIT_S
    assert 60 <= refused <= 150
    assert world.machine.observed.rejected == refused


def test_a_burst_is_as_old_as_its_arrival() -> None:
    """A minute of sound at once is not late: a fast model works it off."""
    world = World(FakeModel(max_in_flight=2), auto=True)
    for _ in range(60):
        assert pick(world.say(1000), "error") == []
    for _ in range(60 * 1000 // 80):
        world.advance(0.005)
        world.answer(ModelOutput(listen=True))
    assert pick(world.say(80), "error") == []
    assert world.machine._ctx.state.sound.marks == []


def test_what_was_dropped_waits_no_more() -> None:
    world = World(FakeModel(max_in_flight=1), auto=True)
    for _ in range(5):
        world.say(80)
    world.advance(LIMIT_S + 1)
    assert pick(world.say(80), "error")
    world.send(CancelInput())
    world.say(80)
    assert pick(world.say(80), "error") == []


def test_a_turn_may_take_its_time() -> None:
    """What a user says in one turn waits for its end: that is no delay."""
    world = World()
    for _ in range(200):
        assert pick(world.say(80), "error") == []
        world.advance(0.1)
