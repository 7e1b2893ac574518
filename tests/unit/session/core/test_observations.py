"""What a session measures of itself: counts that move once, latencies from the right moment."""

from __future__ import annotations

import pytest
from unit.session.core.fake_models import FakeModel, planning
from unit.session.core.session_world import World, pick, spoken

from duologue.model.outputs import ModelOutput, UserTurn
from duologue.protocol.duplex import AckPlayback, AppendAudio, BargeIn, CancelResponse, Commit
from duologue.session.core import SessionLimits
from duologue.session.core.observations import KEPT, LAG_EVERY_S, Observations

pytestmark = pytest.mark.unit


def observed(world: World) -> Observations:
    return world.machine.observed


# -- first audio ------------------------------------------------------------------------------------------


def test_first_audio_is_measured_from_the_commit_once() -> None:
    world = World()
    world.say(160)
    world.advance(1.0)
    world.send(Commit(response_create=True))
    world.advance(0.3)
    world.answer(spoken("a"), last=False)
    world.advance(0.2)
    world.answer(spoken("b", end_of_turn=True))
    assert list(observed(world).first_audio_s) == pytest.approx([0.3])


def test_the_model_says_when_the_turn_had_ended() -> None:
    world = World(planning(), auto=True)
    for _ in range(10):
        world.say(80)
        world.advance(0.08)
    world.answer(ModelOutput(user_turn=UserTurn("hello", 0, 500)))
    world.advance(0.02)  # since the last sound came: 0.1 s, and 0.3 s of sound are younger than the turn
    while len(world.waiting) > 1:
        world.answer()
    world.answer(spoken("yes"))
    assert list(observed(world).first_audio_s) == pytest.approx([0.1 + 0.3])


def test_speech_that_nobody_asked_for_answers_what_was_heard_last() -> None:
    world = World(auto=True)
    world.say(80)
    world.advance(0.25)
    world.answer(spoken("a"))
    assert list(observed(world).first_audio_s) == pytest.approx([0.25])


# -- barge-in ---------------------------------------------------------------------------------------------


def answering() -> World:
    world = World(auto=True)
    world.say(160)
    world.answer(spoken("long"), last=False)
    return world


def test_barge_in_is_measured_from_the_first_append_of_the_speech() -> None:
    world = World(overlap_policy="barge_in_on_sustained_speech", overlap_barge_in_ms=240, overlap_short_ack_ms=80)
    world.say(160)
    world.send(Commit(response_create=True))
    world.answer(spoken("long"), last=False)
    for _ in range(4):
        world.advance(0.08)
        world.say(80)
    assert pick(world.events, "response.done")[0]["response"]["status"] == "cancelled"
    assert list(observed(world).barge_in_s) == pytest.approx([0.24])


def test_the_clients_own_cancel_is_no_barge_in() -> None:
    world = answering()
    world.send(CancelResponse())
    assert not observed(world).barge_in_s
    world = answering()
    world.send(BargeIn())
    assert not observed(world).barge_in_s


# -- lag --------------------------------------------------------------------------------------------------


def test_the_lag_is_the_time_from_a_whole_unit_to_its_end_in_the_last_stage() -> None:
    world = World(auto=True)
    world.say(80)
    world.advance(0.5)
    world.say(80)
    world.answer()
    assert list(observed(world).unit_lag_s) == pytest.approx([0.5])


def test_half_a_unit_starts_no_measurement() -> None:
    world = World(auto=True)
    world.say(40)
    world.advance(3.0)
    world.say(40)
    world.advance(0.1)
    world.answer()
    assert list(observed(world).unit_lag_s) == pytest.approx([0.1])


def test_one_sample_a_second_and_none_of_dropped_input() -> None:
    world = World(auto=True)
    for _ in range(50):
        world.say(80)
        world.advance(0.08)
        world.answer()
    assert len(observed(world).unit_lag_s) == pytest.approx(4 / LAG_EVERY_S, abs=1)
    before = len(observed(world).unit_lag_s)
    world.advance(LAG_EVERY_S)
    world.say(80)
    world.send(BargeIn())
    world.advance(20)
    world.say(80)
    world.advance(0.1)
    world.answer()
    assert max(list(observed(world).unit_lag_s)[before:], default=0.1) == pytest.approx(0.1)


def test_the_samples_are_bounded() -> None:
    seen = Observations()
    for n in range(KEPT + 10):
        seen.turn_ended(float(n))
        seen.first_audio(n + 0.5)
    assert len(seen.first_audio_s) == KEPT


# -- counts -----------------------------------------------------------------------------------------------


def test_an_acknowledgement_that_changes_nothing_is_late() -> None:
    world = answering()
    world.send(AckPlayback(played_ms=40))
    assert observed(world).late_acks == 0
    world.send(AckPlayback(played_ms=40))
    world.send(AckPlayback(played_ms=10))
    assert observed(world).late_acks == 2


def test_purged_audio_is_counted_by_event() -> None:
    world = World(auto=True, holds=["delivers"])
    world.say(160)
    world.answer(spoken("a"), last=False)
    world.answer(spoken("b"), last=False)
    world.send(CancelResponse())
    assert observed(world).purged == 2


@pytest.mark.parametrize("policy", ["close", "fail_response"])
def test_an_overflow_is_counted_by_what_was_done(policy: str) -> None:
    world = World(
        auto=True, holds=["delivers", "covers"], limits=SessionLimits(max_output_events=24), overflow_policy=policy
    )
    world.say(800)
    for _ in range(10):
        world.answer(spoken("word "), last=False)
        if observed(world).overflows:
            break
    assert observed(world).overflows == {policy: 1}


def test_refused_input_is_counted() -> None:
    world = World(limits=SessionLimits(max_pending_input_bytes=10_000))
    world.send(AppendAudio(audio=bytes(20_000)))
    assert observed(world).rejected == 1


def test_faults_are_counted_across_the_recovery() -> None:
    model = FakeModel()
    world = World(model, auto=True)
    model.faults = 1
    world.say(80)
    assert observed(world).faults == {"restored": 1}
    model.faults = 1
    world.say(80)
    assert observed(world).faults == {"restored": 1, "closed": 1}
