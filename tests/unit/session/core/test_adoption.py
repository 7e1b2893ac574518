"""A session goes on under a new owner: what it is told, what it tells, what it keeps."""

from __future__ import annotations

import json

import pytest
from unit.session.core.session_world import Event, World, pick, spoken, types

from duologue.fence import CommandNo, DeliveryId
from duologue.protocol.duplex import AppendAudio, CancelResponse, Commit, SessionClose, SessionHeartbeat
from duologue.session.core import (
    Adopted,
    Attached,
    Close,
    Covered,
    Deliver,
    Delivered,
    DuplexSessionMachine,
    FromClient,
    OpenStages,
    StagesReady,
    Submit,
)

pytestmark = pytest.mark.unit


def heir_of(
    world: World, owner: int = 2, *, journaled: int | None = None, told: bool = False, at: int = -1
) -> list[Event]:
    """Go on from a checkpoint as another shard would; the events that its egress is given at once."""
    checkpoint = world.checkpoints[at]
    world.machine = DuplexSessionMachine.restore(checkpoint.body, plugin=world.plugin, owner=owner)
    through = DeliveryId(1, world.last_n if journaled is None else journaled)
    bodies = tuple((DeliveryId(1, n), body) for n, body in world.bodies.items() if n <= through.n) if told else ()
    world.fences, world.waiting = [], []
    effects = world.machine.handle(Adopted(owner, through, 1, bodies), world.now)
    world.bodies.clear()
    world.last_n = 0
    world.effects.clear()
    world.holds.add("delivers")  # what the world would acknowledge is the first owner's
    world.closed = None
    before = len(world.events)
    world._perform(effects)
    return world.events[before:]


def test_what_is_open_ends_and_nothing_is_told_before_that_is_saved() -> None:
    world = World(auto=True)
    world.say(320)
    world.answer(spoken("one "))
    world.holds.add("covers")
    assert heir_of(world) == []
    seen = world.fact(Covered(world.checkpoints[-1].number))
    done = pick(seen, "response.done")[0]["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("failed", "shard_lost")
    assert world.machine.fence.owner == 2


def test_no_response_no_event_and_the_epoch_stands() -> None:
    world = World(auto=True)
    world.say(240)
    world.advance(1.2)
    epoch, checkpoints = world.machine.fence.epoch, len(world.checkpoints)
    assert heir_of(world) == []
    assert world.machine.fence.epoch == epoch
    assert len(world.checkpoints) == checkpoints + 1, "it is saved before anybody is told"
    assert [type(effect) for effect in world.effects if isinstance(effect, OpenStages)] == [OpenStages]


def test_what_was_streamed_beyond_the_checkpoint_is_folded_from_the_journal() -> None:
    world = World(auto=True)
    world.say(400)
    world.answer(spoken("one "))
    at = len(world.checkpoints) - 1
    world.answer(spoken("two ", units=1))
    world.answer(spoken("three ", units=1))
    assert len(world.checkpoints) == at + 1, "streaming alone is not saved"
    seen = heir_of(world, told=True, at=at)
    [item] = pick(seen, "response.done")[0]["response"]["output"]
    assert item["content"][0]["transcript"] == "one two three "
    assert item["metadata"]["audio_duration_ms"] == 240 if "metadata" in item else True


def test_what_nobody_acknowledged_is_told_again_under_its_id() -> None:
    world = World(auto=True, holds=["delivers"])
    world.say(240)
    world.answer(spoken("one "))
    world.advance(1.2)
    n = world.last_n
    heir_of(world, journaled=3)
    told = [effect for effect in world.effects if isinstance(effect, Deliver)]
    left = [(effect.of, effect.n) for effect in told if effect.of]
    assert left[0] == (1, 4) and left[-1] == (1, n)
    assert min(effect.n for effect in told if not effect.of) == n + 1


def test_an_acknowledgement_of_the_owner_before_counts_for_its_events_only() -> None:
    world = World(auto=True, holds=["delivers"])
    world.say(240)
    world.answer(spoken("one "))
    world.advance(1.2)
    n = world.last_n
    heir_of(world, journaled=0)
    own = [deliver for deliver in world.machine.unacknowledged() if not deliver.of]
    assert own
    world.fact(Delivered(DeliveryId(1, n + 100)))
    assert world.machine.unacknowledged() == own
    world.fact(Delivered(DeliveryId(2, own[-1].n)))
    assert world.machine.unacknowledged() == []


def test_input_that_no_stage_consumed_is_submitted_again() -> None:
    world = World(auto=True)
    for _ in range(4):
        world.say(80)
    world.answer()
    world.advance(1.2)
    waiting = [submit.unit for submit in world.waiting]
    assert waiting
    heir_of(world)
    assert [effect.unit for effect in world.effects if isinstance(effect, Submit)] == waiting


def test_a_turn_that_was_being_heard_is_committed_whole() -> None:
    world = World()
    for _ in range(5):
        world.say(80)
    world.advance(1.2)
    heir_of(world)
    seen = world.send(Commit(response_create=True))
    assert "input_audio_buffer.committed" in types(seen)
    assert len(world.waiting) == 5


def test_a_command_that_was_ahead_of_its_turn_is_not_applied_twice() -> None:
    world = World(auto=True, holds=["offloads"])
    world.say(400)
    world.send(SessionHeartbeat(event_id="beat"))
    world.say(80)
    world.advance(1.2)
    assert types(world.events).count("session.heartbeat_ack") == 1
    heir_of(world)
    assert world.machine.covered == CommandNo()
    world.holds.discard("offloads")
    world.fact(FromClient(CommandNo(1, 1), AppendAudio(audio=bytes(12_800), event_id="long")))
    again = world.fact(FromClient(CommandNo(1, 2), SessionHeartbeat(event_id="beat")))
    assert types(again) == []
    world.fact(FromClient(CommandNo(1, 3), AppendAudio(audio=bytes(2560))))
    assert world.machine.applied == CommandNo(1, 3)
    assert types(world.fact(FromClient(CommandNo(1, 4), SessionHeartbeat()))) == ["session.heartbeat_ack"]


def test_a_client_that_comes_with_new_numbers_is_known_by_its_event_ids() -> None:
    world = World(auto=True, holds=["offloads"])
    world.say(400)
    world.send(SessionHeartbeat(event_id="beat"))
    world.advance(1.2)
    heir_of(world)
    world.fact(Attached(2))
    world.holds.discard("offloads")
    world.fact(FromClient(CommandNo(2, 1), AppendAudio(audio=bytes(12_800))))
    assert types(world.fact(FromClient(CommandNo(2, 2), SessionHeartbeat(event_id="beat")))) == []


def test_a_session_that_was_over_tells_its_end_and_is_let_go() -> None:
    world = World(holds=["delivers"])
    world.send(SessionClose(reason="done"))
    n = world.last_n
    seen = heir_of(world, journaled=n - 1)
    assert types(seen) == ["session.closed"]
    assert Close("done") in world.effects
    assert not [effect for effect in world.effects if isinstance(effect, OpenStages)]


def test_a_third_owner_goes_on_from_the_second() -> None:
    world = World(auto=True)
    world.say(320)
    world.answer(spoken("one "))
    heir_of(world)
    n = world.last_n
    world.machine = DuplexSessionMachine.restore(world.checkpoints[-1].body, plugin=world.plugin, owner=5)
    effects = world.machine.handle(Adopted(5, DeliveryId(2, n), 2), world.now)
    assert not [json.loads(effect.body)["type"] for effect in effects if isinstance(effect, Deliver)]
    world._perform(effects)
    world.fact(StagesReady(world.machine.fence))
    assert types(world.send(CancelResponse()))
