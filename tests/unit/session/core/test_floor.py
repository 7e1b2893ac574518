"""What a client is told besides the turn itself: of silence, of an answer that was lost, of a commit too many."""

from __future__ import annotations

import pytest
from unit.session.core.session_world import World, error_codes, pick, spoken, types

from duologue.fence import CommandNo
from duologue.protocol.duplex import Commit, Dialect
from duologue.session.core import InputRefused, Offloaded, StageFailed, run_offload
from duologue.session.core.effects import Offload

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("auto", [True, False])
def test_a_silent_commit_is_declined_where_the_model_does_not_do_it_itself(auto: bool) -> None:
    world = World(auto=auto)
    world.say(40, loud=False)
    seen = world.send(Commit())
    assert (types(seen)[-1] == "response.listen") is not auto
    assert pick(seen, "input_audio_buffer.committed")[0]["event"]["empty"] is True


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("auto", [True, False])
def test_a_promised_answer_that_is_lost_gives_the_floor_back(dialect: Dialect, auto: bool) -> None:
    """In `duplex`, of a turn that was committed: what a model says by itself was promised to nobody."""
    world = World(dialect=dialect, auto=auto, turn_detection=None, sample_rate_hz=16_000)
    world.say(160)
    if auto:
        world.answer(spoken("hm"))
    else:
        world.send(Commit(response_create=True))
    unit = world.waiting[0]
    seen = world.fact(StageFailed(unit.fence, 0, unit.unit, "engine_error", "it broke"))
    assert "response.done" in types(seen)
    told = pick(seen, "turn.event")
    assert [event["event"] for event in told] == (["user_started"] if dialect is Dialect.duplex and not auto else [])
    assert told == [] or types(seen)[-1] == "turn.event"


def test_a_commit_too_many_is_told_at_once_and_covered_in_its_turn() -> None:
    world = World(holds=["offloads"])
    world.say(1000)
    world.send(Commit())
    world.sent += 1
    no = CommandNo(1, world.sent)
    refusal = InputRefused("many", "input_backpressure", "too many turns", 1000, no)
    assert error_codes(world.fact(refusal)) == ["input_backpressure"]
    assert world.fact(refusal) == [], "it is told once"
    assert world.machine.applied == CommandNo(), "nothing before it is applied yet"
    world.send(Commit(event_id="last"))
    work = next(effect for effect in world.effects if isinstance(effect, Offload))
    world.fact(Offloaded(work.ticket, run_offload(work.kind, work.body)))
    assert error_codes(world.events) == ["input_backpressure", "input_audio_buffer_empty"]
    assert world.machine.applied == CommandNo(1, world.sent)


def test_sound_that_there_is_no_room_for_is_told_in_its_turn() -> None:
    world = World(holds=["offloads"])
    world.say(1000)
    world.sent += 1
    refusal = InputRefused("much", "input_backpressure", "full", 1000, CommandNo(1, world.sent), "audio")
    assert world.fact(refusal) == []
    work = next(effect for effect in world.effects if isinstance(effect, Offload))
    assert error_codes(world.fact(Offloaded(work.ticket, run_offload(work.kind, work.body)))) == ["input_backpressure"]
