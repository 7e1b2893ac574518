"""What worlds of the whole system have found in the core, each as the shortest story that shows it."""

from __future__ import annotations

import pytest
from unit.session.core.session_world import World, error_codes, pick, spoken, types

from duologue.fence import CommandNo
from duologue.protocol.duplex import AppendAudio, SessionHeartbeat
from duologue.session.core import Abort, CheckpointWanted, Offload, Offloaded, StageFailed, run_offload

pytestmark = pytest.mark.unit


def convert(world: World) -> None:
    """The conversion that the input waits for comes back."""
    effect = next(effect for effect in reversed(world.effects) if isinstance(effect, Offload))
    world.fact(Offloaded(effect.ticket, run_offload(effect.kind, effect.body)))


def test_a_command_that_waited_is_covered_though_a_checkpoint_was_made_meanwhile() -> None:
    world = World(holds=["offloads"], auto=True)
    world.say(1000, loud=False)
    world.advance(1.5)
    convert(world)
    world.advance(1.5)
    assert world.machine.covered == world.machine.applied == CommandNo(1, 1)


def test_a_command_applied_before_its_turn_is_named_as_the_last_one() -> None:
    world = World(holds=["offloads"], auto=True)
    world.send(AppendAudio(audio=bytes(32_000), event_id="long"))
    world.send(SessionHeartbeat(event_id="beat"))
    convert(world)
    world.advance(1.5)
    assert world.machine.covered == CommandNo(1, 2)
    assert world.machine.last_client_event_id == "beat"


def test_who_waits_for_coverage_waits_for_what_waits_for_its_turn_too() -> None:
    world = World(holds=["offloads"], auto=True)
    world.say(1000, loud=False)
    world.fact(CheckpointWanted())
    assert world.machine.input_waits
    assert world.machine.covered == CommandNo()
    convert(world)
    assert not world.machine.input_waits
    assert world.machine.covered == CommandNo(1, 1)


def test_less_than_a_unit_of_input_does_not_end_the_silence_continuation() -> None:
    world = World(auto=True)
    world.say(80)
    world.answer(spoken("one "))
    world.say(40)
    before = len(world.submits)
    world.advance(1.0)
    assert len(world.submits) > before


def test_a_failure_that_overtakes_earlier_units_voids_what_they_would_have_begun() -> None:
    world = World(auto=True)
    world.say(80)
    world.say(80)
    first, second = world.waiting
    told = world.fact(StageFailed(second.fence, 0, second.unit, "engine_error", "no"))
    assert error_codes(told) == ["runtime_append_failed"]
    assert isinstance(next(e for e in reversed(world.effects) if isinstance(e, Abort)), Abort)
    world.waiting = [first]
    assert pick(world.answer(spoken("one ")), "response.created") == []
    world.say(80)
    assert "response.created" in types(world.answer(spoken("two ")))
