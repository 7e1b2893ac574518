"""Pacing: a model that answers faster than it is heard is told no further ahead than its pipeline allows."""

from __future__ import annotations

import msgspec
import pytest
from unit.session.core.fake_models import planning
from unit.session.core.session_world import Event, World, pick, spoken, types
from unit.session.core.test_plans import heard

from duologue.model.outputs import ModelOutput
from duologue.protocol.duplex import CancelResponse
from duologue.session.core import SessionLimits, StageFailed

pytestmark = pytest.mark.unit

LEAD_MS, UNIT_MS = 240, 80
DELTA = "response.output_audio.delta"


def answering(limits: SessionLimits | None = None, lead_ms: int = LEAD_MS, holds: tuple[str, ...] = ()) -> World:
    """A turn has been asked; its answer is due."""
    plugin = planning()
    plugin.pipeline = msgspec.structs.replace(plugin.pipeline, max_output_lead_ms=lead_ms)
    world = World(plugin, auto=True, limits=limits, holds=holds)
    world.say()
    world.answer(heard("what time is it"))
    return world


def ten_units(world: World) -> list[Event]:
    words = [spoken(f"word{n} ") for n in range(9)]
    return world.answer(*words, spoken("end", end_of_turn=True))


def test_only_the_lead_is_told_at_once() -> None:
    world = answering()
    seen = ten_units(world)
    assert len(pick(seen, DELTA)) == LEAD_MS // UNIT_MS
    assert not pick(seen, "response.done")


def test_the_rest_follows_at_the_pace_of_speech_and_the_end_with_the_last_of_it() -> None:
    world = answering()
    ten_units(world)
    told = [len(pick(world.advance(UNIT_MS / 1000), DELTA)) for _ in range(6)]
    assert told == [1] * 6
    last = world.advance(UNIT_MS / 1000)
    assert len(pick(last, DELTA)) == 1 and pick(last, "response.done")[0]["response"]["status"] == "completed"
    assert "".join(e["delta"] for e in pick(world.events, "response.output_audio_transcript.delta")).endswith("end")


def test_a_cancel_finds_the_response_open_and_drops_what_waits() -> None:
    world = answering()
    ten_units(world)
    seen = world.send(CancelResponse())
    assert pick(seen, "response.done")[0]["response"]["status"] == "cancelled"
    assert not pick(world.advance(5), DELTA)
    assert len(pick(world.events, "response.done")) == 1


def test_nothing_of_a_cancelled_answer_is_told_in_the_next() -> None:
    world = answering()
    ten_units(world)
    world.send(CancelResponse())
    world.say()
    world.answer(heard("and now"))
    seen = world.answer(spoken("noon", end_of_turn=True))
    assert [event["delta"] for event in pick(seen, "response.output_audio_transcript.delta")] == ["noon"]


def test_a_client_hears_from_the_first_sound_that_was_written() -> None:
    world = answering(holds=("delivers",))
    assert len(pick(ten_units(world), DELTA)) == LEAD_MS // UNIT_MS
    assert not pick(world.advance(1.0), DELTA), "nothing was written yet, so nobody hears anything"


def test_the_first_sound_is_told_even_if_it_is_longer_than_the_lead() -> None:
    world = answering(lead_ms=40)
    seen = world.answer(spoken("noon", end_of_turn=True))
    assert types(seen).count(DELTA) == 1 and pick(seen, "response.done")


def test_beyond_its_bound_the_oldest_goes_ahead_of_its_time() -> None:
    two_units = 2 * 2 * 1920
    world = answering(SessionLimits(max_paced_bytes=two_units))
    assert len(pick(ten_units(world), DELTA)) == 8
    assert world.machine.observed.unpaced == 8 - LEAD_MS // UNIT_MS


def test_what_waits_survives_a_move_to_another_process() -> None:
    world = answering()
    ten_units(world)
    world.restart()
    world.advance(5)
    assert len(pick(world.events, DELTA)) == 10 and pick(world.events, "response.done")


def test_what_was_made_is_heard_before_the_answer_fails() -> None:
    world = answering()
    unit = world.waiting[0]
    world.answer(*[spoken(f"word{n} ") for n in range(9)], last=False)
    world.fact(StageFailed(unit.fence, 1, unit.unit, "thinker_failed", "it broke off", False))
    assert not pick(world.events, "response.done")
    world.advance(5)
    assert len(pick(world.events, DELTA)) == 9
    assert [event["response"]["status"] for event in pick(world.events, "response.done")] == ["failed"]
    assert pick(world.events, "error")[0]["error"]["code"] == "thinker_failed"


def test_without_a_lead_everything_is_told_as_it_is_made() -> None:
    seen = ten_units(answering(lead_ms=0))
    assert len(pick(seen, DELTA)) == 10 and pick(seen, "response.done")


def test_an_interruption_by_the_model_cancels_what_is_heard() -> None:
    world = answering()
    world.answer(*[spoken(f"word{n} ") for n in range(9)], last=False)
    plan = world.waiting.pop(0)
    world.say()
    world.waiting.append(plan)
    seen = world.answer(ModelOutput(speech_started_ms=80, interrupt="turn_detected"))
    assert pick(seen, "response.done")[0]["response"]["status_details"]["reason"] == "turn_detected"
