"""Cancel, barge-in and output clear: one atomic step."""

from __future__ import annotations

import pytest
from unit.session.core.session_world import World, error_codes, pick, sound, spoken, types
from unit.session.core.test_responses import SHORT_TAIL, TAIL, asked

from duologue.model.outputs import ModelOutput
from duologue.protocol.duplex import (
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearOutput,
    Commit,
    CreateResponse,
)
from duologue.session.core import Abort, Invalidate, StageOutput, UnitsAborted

pytestmark = pytest.mark.unit

CLEARED = "input_audio_buffer.cleared"


def speaking(units: int = 4, **options: object) -> World:
    """An auto session in the middle of a response, with units under way."""
    world = World(auto=True, **options)  # type: ignore[arg-type]
    world.say(80 * units)
    world.answer(spoken("one "))
    return world


def test_a_cancel_is_one_step() -> None:
    world = speaking(holds=["delivers"])
    world.effects.clear()
    seen = world.send(CancelResponse())
    assert types(seen) == TAIL
    kinds = [type(effect) for effect in world.effects]
    assert kinds.index(Abort) < kinds.index(Invalidate)
    done = pick(seen, "response.done")[0]["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert world.machine.fence.epoch == 1


def test_a_cancel_before_any_output_has_the_short_tail() -> None:
    assert types(asked().send(CancelResponse())) == SHORT_TAIL


def test_stale_outputs_are_dropped_and_counted() -> None:
    world = speaking()
    late = world.waiting[0]
    world.send(CancelResponse())
    out = StageOutput(late.fence, 1, -1, late.unit, late.turn_id, True, b"", ())
    assert world.fact(out) == []
    assert world.machine.stale == {"output": 1}


def test_only_dropped_units_return_and_in_order() -> None:
    world = speaking(5, holds=["aborts"])
    old = [(unit.unit, unit.frames[0]) for unit in world.waiting]
    world.send(CancelResponse())
    world.say(80)
    assert world.waiting == [], "nothing is submitted before the workers have told"
    consumed, *dropped = [number for number, _ in old]
    world.fact(UnitsAborted(world.fences[-1], (consumed,), tuple(dropped[:1])))
    assert world.waiting == []
    world.fact(UnitsAborted(world.fences[-1], (), tuple(dropped[1:])))
    assert [unit.frames[0] for unit in world.waiting[:3]] == [pcm for _, pcm in old[1:]]
    assert len(world.waiting) == 4
    assert min(unit.unit for unit in world.waiting) > max(number for number, _ in old)


def test_a_worker_that_never_tells_holds_nothing_up() -> None:
    world = speaking(5, holds=["aborts"])
    world.send(CancelResponse())
    world.say(80)
    world.advance(1.5)
    assert len(world.waiting) >= 1
    assert world.machine.stale == {"abort_unanswered": 1}


def test_an_output_of_before_the_abort_says_that_its_unit_was_consumed() -> None:
    world = speaking(2, holds=["aborts"])
    late = world.waiting[0]
    world.send(CancelResponse())
    world.say(80)
    world.fact(StageOutput(late.fence, 1, -1, late.unit, late.turn_id, True, b"", ()))
    assert len(world.waiting) == 1


def test_nothing_running_is_an_error_with_the_clients_id() -> None:
    world = World(auto=True)
    (event,) = world.send(CancelResponse(event_id="x"))
    assert (event["error"]["code"], event["error"]["event_id"]) == ("response_not_active", "x")
    world = speaking()
    assert error_codes(world.send(CancelResponse(response_id="resp-other"))) == ["response_not_active"]
    assert world.machine.fence.epoch == 0


def test_stop_commands_always_answer_and_always_move_the_epoch() -> None:
    for command in (CancelInput(), BargeIn()):
        world = World(auto=True)
        assert types(world.send(command)) == [CLEARED]
        assert world.machine.fence.epoch == 1
        world = speaking()
        seen = world.send(command)
        assert types(seen) == [CLEARED, *TAIL]
        assert pick(seen, "response.done")[0]["response"]["status_details"]["reason"] == "barge_in"


def test_output_clear_stops_the_client_first() -> None:
    world = speaking()
    seen = world.send(ClearOutput())
    assert types(seen) == ["output_audio_buffer.cleared", *TAIL]
    quiet = World(auto=True)
    (event,) = quiet.send(ClearOutput())
    assert (event["response_id"], quiet.machine.fence.epoch) == (None, 0)


def finished() -> World:
    world = World(auto=True)
    world.say(160)
    world.answer(spoken("one "))
    world.answer(spoken("two", end_of_turn=True))
    return world


def test_barge_in_after_generation_stops_the_speaker() -> None:
    world = finished()
    world.now += 0.08
    seen = world.send(BargeIn())
    assert types(seen) == [CLEARED, "output_audio_buffer.cleared", "conversation.item.truncated"]
    assert seen[2]["audio_end_ms"] == 80
    assert types(world.send(BargeIn())) == [CLEARED], "it is stopped once"


def test_what_has_been_played_cannot_be_stopped() -> None:
    world = finished()
    world.now += 0.2
    assert types(world.send(BargeIn())) == [CLEARED]


def test_cancelled_audio_leaves_the_buffer_and_is_not_delivered_again() -> None:
    world = speaking(holds=["delivers"])
    before = [body for body in world.machine.unacknowledged() if body.media_of]
    assert before
    world.send(CancelResponse())
    assert not [body for body in world.machine.unacknowledged() if body.media_of]


def test_a_cancelled_turn_of_a_turn_based_session_is_gone() -> None:
    world = asked(3)
    world.send(CancelResponse())
    world.advance(1)
    assert world.waiting == []
    assert error_codes(world.send(CreateResponse())) == ["response_create_without_input"]
    world.say()
    world.send(Commit(response_create=True))
    assert f"-{'0' * 32}-1-" in pick(world.events, "response.created")[-1]["response_id"]


def test_an_abort_while_stages_open_is_told_them_when_they_are() -> None:
    from duologue.session.core import StagesReady

    world = World(auto=True, holds=["ready"])
    opened = world.fences[-1]
    world.say(160)
    world.send(CancelInput())
    assert not [effect for effect in world.effects if isinstance(effect, Abort)]
    world.say(80)
    world.fact(StagesReady(opened))
    assert [effect.fence.epoch for effect in world.effects if isinstance(effect, Abort)] == [1]
    assert len(world.submits) == 1
    assert sound(80)


def test_a_cancelled_item_holds_what_was_acknowledged() -> None:
    from duologue.protocol.duplex import AckPlayback

    world = World(auto=True)
    world.say(240)
    world.answer(spoken("one "))
    world.answer(spoken("two "))
    world.send(AckPlayback(played_ms=80))
    done = pick(world.send(CancelResponse()), "response.done")[0]["response"]
    assert done["output"][0]["content"][0]["transcript"] == "one"
    assert pick(world.events, "response.output_audio_transcript.done")[0]["transcript"] == "one two "
    assert world.answer(ModelOutput(listen=True)) != []
