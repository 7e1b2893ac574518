"""What a session came to, for its account: kept in its state, so that an heir goes on counting."""

from __future__ import annotations

import pytest
from unit.session.core.session_world import World, spoken
from unit.session.core.test_cancel import speaking

from duologue.model.outputs import ModelOutput
from duologue.protocol.duplex import BargeIn, CancelResponse, ClearOutput
from duologue.session.core.engine_session import Totals

pytestmark = pytest.mark.unit


def test_sound_in_and_out_is_counted_in_milliseconds() -> None:
    world = World(auto=True)
    world.say(400)
    world.answer(spoken("one "))
    world.answer(ModelOutput(end_of_turn=True))
    totals = world.machine.totals
    assert totals.input_ms == 400
    assert totals.output_ms == pytest.approx(80, abs=81)
    assert totals.output_ms > 0
    assert (totals.responses, totals.cancelled, totals.failed, totals.interruptions) == (1, 0, 0, 0)


def test_who_stops_an_answer_by_speaking_interrupts_and_a_program_does_not() -> None:
    world = speaking()
    world.send(BargeIn())
    assert (world.machine.totals.cancelled, world.machine.totals.interruptions) == (1, 1)
    world.send(BargeIn())
    assert world.machine.totals.interruptions == 1, "there was nothing to interrupt"
    other = speaking()
    other.send(CancelResponse())
    assert (other.machine.totals.cancelled, other.machine.totals.interruptions) == (1, 0)
    third = speaking()
    third.send(ClearOutput())
    assert third.machine.totals.interruptions == 0


def test_an_heir_goes_on_counting() -> None:
    world = speaking()
    world.send(BargeIn())
    before = world.machine.totals
    world.restart()
    assert world.machine.totals == before
    world.say(80)
    assert world.machine.totals.since(before) == Totals(input_ms=80)
    assert before.plus(Totals(input_ms=80)) == world.machine.totals
