"""Output commit, checkpoints, the buffer's limits and what happens beyond them."""

from __future__ import annotations

import msgspec
import pytest
from unit.session.core.event_rules import violations
from unit.session.core.session_world import World, error_codes, pick, spoken, types
from unit.session.core.test_responses import asked

from duologue.fence import CommandNo, DeliveryId
from duologue.protocol.duplex import CancelInput, Commit, ContentPart, CreateItem, SessionHeartbeat, message_item
from duologue.session.core import (
    Attached,
    CheckpointWanted,
    Covered,
    Deliver,
    Delivered,
    Invalidate,
    SessionLimits,
    Tick,
)
from duologue.session.core.engine_session import DuplexEngineSession
from duologue.session.core.outbox import DuplexOutputBuffer, Entry

pytestmark = pytest.mark.unit


def test_structural_events_wait_for_the_checkpoint_that_contains_their_cause() -> None:
    world = World(holds=["covers"])
    assert world.events == []
    assert types(world.fact(Covered(1))) == ["session.updated"]
    assert world.send(SessionHeartbeat()) == []
    assert world.send(SessionHeartbeat()) == []
    assert len(world.checkpoints) == 2, "one outstanding, the rest shares the next"
    assert types(world.fact(Covered(2))) == ["session.heartbeat_ack"]
    assert types(world.fact(Covered(3))) == ["session.heartbeat_ack"]
    assert world.checkpoints[2].applied == world.machine.applied == world.machine.covered


def test_streaming_events_leave_at_once_but_never_overtake() -> None:
    world = World(auto=True)
    world.say(320)
    world.answer(spoken("one "))
    world.holds.add("covers")
    assert types(world.answer(spoken("two ")))[0] == "response.output_audio.delta"
    world.send(SessionHeartbeat())
    assert world.answer(spoken("three ")) == []
    seen = world.fact(Covered(world.checkpoints[-1].number))
    assert types(seen)[0] == "session.heartbeat_ack"
    assert len(seen) == 3


def test_a_checkpoint_holds_what_an_heir_cannot_have_from_anybody_else() -> None:
    world = World(auto=True, holds=["delivers", "covers"])
    world.fact(Covered(1))
    world.say(2000)
    world.answer(spoken("x" * 50))
    world.fact(Covered(world.checkpoints[-1].number))
    state = msgspec.msgpack.decode(world.checkpoints[-1].body, type=DuplexEngineSession)
    assert len(state.sound.feed.pcm) + state.sound.flight_bytes > 100_000, "input that no stage has consumed"
    assert state.sound.flights and not any(flight.frames for flight in state.sound.flights.values())
    kept = [*state.outbox.sent, *state.outbox.held]
    assert b"response.created" in b"".join(entry.body for entry in kept)
    assert any(entry.media_of for entry in kept), "sound that nobody has acknowledged"


def test_a_checkpoint_of_a_client_that_is_far_behind_holds_what_is_structural() -> None:
    buffer = DuplexOutputBuffer()
    for n in range(1, 41):
        buffer.put(Entry(n, bytes(10_000), n % 4 == 0))
    assert all(entry.structural for entry in buffer.kept().held) and len(buffer.kept().sent) == 0
    buffer.acknowledge(3)
    buffer.release(40)
    buffer.acknowledge(20)
    assert buffer.kept() is buffer


def test_a_store_that_stays_away_is_waited_for_once() -> None:
    world = World(holds=["covers"])
    assert types(world.advance(0.24)) == []
    assert types(world.advance(0.02)) == ["session.updated"]
    assert world.machine.observed.uncovered == 1
    assert types(world.send(SessionHeartbeat())) == ["session.heartbeat_ack"]
    world.fact(Covered(1))
    assert world.send(SessionHeartbeat()) == [], "it answers again: structural events wait again"


def test_input_alone_is_saved_at_most_once_a_second() -> None:
    world = World()
    world.say(80)
    before = len(world.checkpoints)
    for _ in range(50):
        world.advance(0.08)
        world.say(80)
    assert 3 <= len(world.checkpoints) - before <= 6
    world.advance(1.1)
    assert world.machine.covered == world.machine.applied
    assert world.machine.input_audio_end_ms == 51 * 80


def test_a_checkpoint_on_request_only_if_something_is_not_covered() -> None:
    world = World()
    before = len(world.checkpoints)
    world.fact(CheckpointWanted())
    assert len(world.checkpoints) == before
    world.say()
    world.say()
    before = len(world.checkpoints)
    world.fact(CheckpointWanted())
    assert len(world.checkpoints) == before + 1
    assert world.machine.covered == world.machine.applied


def test_a_slow_client_loses_its_session_by_default() -> None:
    world = World(auto=True, holds=["delivers"])
    for _ in range(600):
        if world.closed:
            break
        world.say()
        if world.waiting:
            world.answer(spoken("word "))
    assert error_codes(world.events) == ["output_backpressure"]
    done = pick(world.events, "response.done")[0]["response"]
    assert done["status_details"] == {
        "type": "failed",
        "reason": "output_backpressure",
        "error": {"type": "server_error", "code": "output_backpressure"},
    }
    assert world.events[-1]["type"] == "session.closed"
    assert world.closed == "output_backpressure"
    assert pick(world.events, "error")[0]["error"]["retryable"] is False
    assert any(isinstance(effect, Invalidate) for effect in world.effects)
    assert list(violations(world.events)) == []


def test_or_only_its_response() -> None:
    world = World(auto=True, holds=["delivers"], overflow_policy="fail_response")
    while not error_codes(world.events):
        world.say()
        world.answer(spoken("word "))
    assert world.closed is None
    assert pick(world.events, "response.done")[0]["response"]["status"] == "failed"
    world.holds.clear()
    world.fact(Delivered(DeliveryId(1, world.last_n)))
    world.say()
    assert (
        pick(world.answer(spoken("again", end_of_turn=True)), "response.done")[0]["response"]["status"] == "completed"
    )


def test_where_even_the_reserve_is_full_the_session_ends_under_either_policy() -> None:
    limits = SessionLimits(max_output_events=20, reserve_output_events=1)
    world = World(limits=limits, holds=["delivers"], overflow_policy="fail_response")
    world.say()
    world.send(Commit(response_create=True))
    while world.closed is None:
        world.send(SessionHeartbeat())
    assert world.machine.observed.overflows == {"close": 1}
    assert not pick(world.events, "response.done"), "the error took the reserve"
    assert types(world.events)[-2:] == ["error", "session.closed"], "the terminal event has a place of its own"


def test_the_count_limits_too() -> None:
    limits = SessionLimits(max_output_events=20)
    world = World(limits=limits, holds=["delivers"])
    for _ in range(40):
        if world.closed is None:
            world.send(SessionHeartbeat())
    assert types(world.events)[-2:] == ["error", "session.closed"]
    assert len(world.events) == 22


@pytest.mark.parametrize("held", ["covers", "delivers"])
def test_a_burst_of_commands_waits_for_room_in_the_output(held: str) -> None:
    world = World(holds=[held])
    for number in range(200):
        world.send(CreateItem(item=message_item(f"item_{number}", "user", text_part(number))))
    assert world.machine.input_waits
    if held == "delivers":
        assert "session.heartbeat_ack" in types(world.send(SessionHeartbeat())), "it does not wait"
    world.holds.clear()
    world.fact(Covered(world.checkpoints[-1].number))
    world.fact(Delivered(DeliveryId(1, world.last_n)))
    assert not error_codes(world.events)
    done = [event["item"]["id"] for event in pick(world.events, "conversation.item.done")]
    assert done == [f"item_{number}" for number in range(200)]
    assert world.machine.applied == world.machine.covered == CommandNo(1, world.sent)


def test_a_cancel_takes_back_input_that_waits_for_room_and_leaves_the_rest() -> None:
    world = World(holds=["delivers"], limits=SessionLimits(max_output_events=12))
    world.say()
    for number in range(4):
        world.send(CreateItem(item=message_item(f"item_{number}", "user", text_part(number))))
    world.send(Commit())
    assert world.machine.input_waits
    assert types(world.send(CancelInput())) == ["input_audio_buffer.cleared"]
    world.holds.clear()
    world.fact(Delivered(DeliveryId(1, world.last_n)))
    assert not world.machine.input_waits
    assert not pick(world.events, "input_audio_buffer.committed")
    assert len(pick(world.events, "conversation.item.done")) == 4
    assert world.machine.applied == CommandNo(1, world.sent)


def test_an_attachment_does_not_wait_for_room_that_only_it_can_make() -> None:
    world = World(holds=["delivers"], limits=SessionLimits(max_output_events=40))
    for number in range(10):
        world.send(CreateItem(item=message_item(f"item_{number}", "user", text_part(number))))
    assert world.machine.input_waits
    world.fact(Attached(2))
    assert not world.machine.input_waits
    assert world.machine.applied == world.machine.covered == CommandNo(1, 10)


def test_live_sound_does_not_wait_for_room() -> None:
    world = World(auto=True, holds=["delivers"], limits=SessionLimits(max_output_events=8))
    for _ in range(4):
        world.send(SessionHeartbeat())
    world.say()
    assert len(world.submits) == 1


def text_part(number: int) -> ContentPart:
    return ContentPart(type="input_text", text=f"hello {number}")


def test_an_acknowledgement_is_a_watermark_and_frees() -> None:
    buffer, limits = DuplexOutputBuffer(breaker=True), SessionLimits()
    for n in range(1, 5):
        assert buffer.put(Entry(n, b"x" * 10, True)) is not None
    assert [entry.n for entry in buffer.acknowledge(2)] == [1, 2]
    assert (buffer.size_bytes, buffer.events) == (20, 2)
    assert buffer.acknowledge(2) == []
    assert buffer.fits(limits.max_output_bytes - 20, False, limits)
    assert not buffer.fits(limits.max_output_bytes, False, limits)
    assert buffer.fits(limits.max_output_bytes, True, limits)


def test_a_new_owner_keeps_the_ids_of_what_is_left_and_numbers_on() -> None:
    buffer = DuplexOutputBuffer()
    for n in range(1, 5):
        buffer.n = n
        buffer.put(Entry(n, b"x", True))
    buffer.inherit(7)
    buffer.journaled(DeliveryId(7, 2))
    buffer.n += 1
    buffer.sent.append(Entry(buffer.n, b"x", True))
    assert [(entry.of, entry.n) for entry in buffer.sent] == [(7, 3), (7, 4), (0, 5)]
    assert not buffer.acknowledge(9, of=6), "an older owner's acknowledgement"
    assert [entry.n for entry in buffer.acknowledge(3, of=7)] == [3]
    assert not buffer.acknowledge(3, of=7)
    buffer.inherit(8)
    assert [(entry.of, entry.n) for entry in buffer.sent] == [(7, 4), (8, 5)]
    assert [entry.n for entry in buffer.acknowledge(90, of=7)] == [4], "not what was made after it"
    buffer.sent.append(Entry(6, b"x", True))
    assert [entry.n for entry in buffer.acknowledge(5)] == [5], "ours cover all that is older"


def test_unacknowledged_events_are_told_again_to_a_new_egress() -> None:
    from duologue.session.core import Attached, Detached

    world = asked(holds=["delivers"])
    again = [deliver.n for deliver in world.machine.unacknowledged()]
    assert again == list(range(1, world.last_n + 1))
    effects = world.machine.handle(Detached(0), world.now)
    assert [effect.n for effect in effects if isinstance(effect, Deliver)] == again
    effects = world.machine.handle(Attached(2), world.now)
    assert [effect.n for effect in effects if isinstance(effect, Deliver)] == again
    assert world.machine.handle(Detached(1), world.now) == []
    assert world.machine.detached_since is None


def test_a_tick_that_comes_early_does_nothing() -> None:
    world = World()
    world.say()
    world.send(Commit())
    assert world.fact(Tick()) == []
