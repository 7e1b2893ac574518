"""A checkpoint was late, events left without it, and the shard died: its heir tells none of them again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest
from unit.session.core.session_world import Event, World, pick, spoken, types
from unit.session.core.test_adoption import heir_of

from duologue.fence import CommandNo, DeliveryId
from duologue.model.outputs import ModelOutput, ToolCall
from duologue.protocol.duplex import (
    CancelResponse,
    ClearInput,
    Commit,
    ContentPart,
    CreateItem,
    DeleteItem,
    DuplexCommand,
    RetrieveItem,
    SessionClose,
    SessionHeartbeat,
    SessionUpdate,
    TruncateItem,
    message_item,
)
from duologue.session.core import Adopted, Covered, Deliver, Delivered, DuplexSessionMachine, FromClient
from duologue.session.core.echoes import MAX_TOLD, VALID_S, key_of

pytestmark = pytest.mark.unit


def text(item_id: str) -> CreateItem:
    return CreateItem(item=message_item(item_id, "user", ContentPart(type="input_text", text="hello")))


def beyond(world: World, act: Callable[[], object]) -> tuple[list[Event], int]:
    """What is told of `act` while checkpoints stay away, and the last checkpoint before it."""
    at, before = len(world.checkpoints) - 1, len(world.events)
    world.holds.add("covers")
    act()
    world.advance(0.3)
    world.holds.discard("covers")
    return world.events[before:], at


def doubles(events: list[Event]) -> dict[str, int]:
    keys = Counter(key for event in events if (key := key_of(json.dumps(event).encode())) is not None)
    return {key: n for key, n in keys.items() if n > 1 and key != "rate_limits.updated"}


COMMANDS: dict[str, list[DuplexCommand]] = {
    "heartbeat": [SessionHeartbeat()],
    "item": [text("item_of_the_client")],
    "item without an id": [text("")],
    "deleted": [DeleteItem(item_id="item_known")],
    "created and deleted": [text("item_gone"), DeleteItem(item_id="item_gone")],
    "retrieved": [RetrieveItem(item_id="item_known"), DeleteItem(item_id="item_known")],
    "cleared": [ClearInput()],
    "configured": [SessionUpdate(session={"overlap_short_ack_ms": 555})],
    "refused": [CancelResponse(event_id="mine")],
    "committed and answered": [Commit(response_create=True)],
    "committed": [Commit(response_create=False)],
    "answer cancelled": [Commit(response_create=True), CancelResponse()],
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_that_is_sent_again_is_answered_once(kind: str) -> None:
    world = World()
    world.send(text("item_known"))
    world.say(240)
    world.advance(1.2)
    sent = world.sent

    def act() -> None:
        for command in COMMANDS[kind]:
            world.send(command)

    told, at = beyond(world, act)
    assert told
    seen = heir_of(world, told=True, at=at)
    for number, command in enumerate(COMMANDS[kind], sent + 1):
        seen += world.fact(FromClient(CommandNo(1, number), command))
    assert doubles(told + seen) == {}
    created, done = (len(pick(told + seen, f"response.{name}")) for name in ("created", "done"))
    assert created == done <= 1, "what was told open has ended"
    assert not [kind for kind in types(seen) if kind == "error"]
    assert types(world.fact(FromClient(CommandNo(1, 90), SessionHeartbeat()))) == ["session.heartbeat_ack"]


def test_an_item_keeps_the_id_that_was_told() -> None:
    world = World()
    world.say(240)
    world.advance(1.2)
    told, at = beyond(world, lambda: world.send(Commit(response_create=False)))
    item_id = pick(told, "input_audio_buffer.committed")[0]["item_id"]
    heir_of(world, told=True, at=at)
    assert world.fact(FromClient(CommandNo(1, 2), Commit(response_create=False))) == []
    [found] = pick(
        world.fact(FromClient(CommandNo(1, 3), RetrieveItem(item_id=item_id))), "conversation.item.retrieved"
    )
    assert found["item"]["id"] == item_id


@pytest.mark.parametrize("ends", [True, False])
def test_a_response_that_was_told_ends_once(ends: bool) -> None:
    world = World(auto=True)
    world.say(320)
    world.answer(spoken("one "))
    world.advance(1.2)
    told, at = beyond(world, lambda: world.answer(spoken("two ", end_of_turn=ends)))
    seen = heir_of(world, told=True, at=at)
    [done] = pick(told + seen, "response.done")
    assert done["response"]["status"] == ("completed" if ends else "failed")
    assert done["response"]["output"][0]["content"][0]["transcript"] == "one two "
    assert doubles(told + seen) == {}


def test_words_whose_sound_was_taken_back_were_not_heard() -> None:
    world = World(auto=True)
    world.say(320)
    world.advance(1.2)
    told, at = beyond(world, lambda: (world.answer(spoken("one ")), world.answer(spoken("two "))))
    last = [n for n, body in world.bodies.items() if b"response.output_audio.delta" in body][-1]
    del world.bodies[last]
    response_id = pick(told, "response.created")[0]["response_id"]
    heir_of(world, told=True, at=at)
    [truncated] = pick(
        world.send(TruncateItem(item_id=f"item_{response_id}", audio_end_ms=80)), "conversation.item.truncated"
    )
    [found] = pick(world.send(RetrieveItem(item_id=truncated["item_id"])), "conversation.item.retrieved")
    assert found["item"]["content"][0]["transcript"] == "one"


def test_a_response_that_was_opened_beyond_the_checkpoint_is_ended_under_its_id() -> None:
    world = World(auto=True)
    world.say(320)
    world.advance(1.2)
    told, at = beyond(world, lambda: world.answer(spoken("one ")))
    opened = pick(told, "response.created")[0]["response_id"]
    seen = heir_of(world, told=True, at=at)
    assert [event["response_id"] for event in pick(seen, "response.done")] == [opened]
    assert doubles(told + seen) == {}
    world.answer()
    more = world.answer(spoken("again ", end_of_turn=True)) if world.waiting else []
    assert opened not in [event["response_id"] for event in pick(more, "response.created")]


def test_the_epoch_does_not_go_back() -> None:
    world = World(auto=True)
    world.say(320)
    world.answer(spoken("one "))
    world.advance(1.2)
    _, at = beyond(world, lambda: (world.send(CancelResponse()), world.send(SessionHeartbeat())))
    epoch = world.machine.fence.epoch
    heir_of(world, told=True, at=at)
    assert world.machine.fence.epoch >= epoch


def test_a_function_call_that_was_told_does_not_run_twice() -> None:
    call = ModelOutput(tool_calls=(ToolCall("look", '{"at":"it"}', "call_1"),))
    world = World(auto=True)
    world.say(320)
    world.advance(1.2)
    told, at = beyond(world, lambda: world.answer(call))
    assert pick(told, "response.function_call_arguments.done")
    seen = heir_of(world, told=True, at=at)
    seen += world.answer(call)
    assert not pick(seen, "response.function_call_arguments.done")
    assert doubles(told + seen) == {}


def test_the_end_of_the_session_stands() -> None:
    world = World()
    told, at = beyond(world, lambda: world.send(SessionClose(reason="done")))
    seen = heir_of(world, told=True, at=at)
    assert types(told)[-1] == "session.closed"
    assert [event["event_id"] for event in seen] == [told[-1]["event_id"]], "known again by its id"
    assert world.machine.closed


def test_an_heir_of_the_heir_knows_them_too_and_nobody_for_ever() -> None:
    world = World()
    told, at = beyond(world, lambda: world.send(SessionHeartbeat()))
    assert types(told) == ["session.heartbeat_ack"]
    heir_of(world, told=True, at=at)
    body = world.checkpoints[-1].body
    for wait_s, due in ((0.0, []), (VALID_S, ["session.heartbeat_ack"])):
        machine = DuplexSessionMachine.restore(body, plugin=world.plugin, owner=3)
        machine.handle(Adopted(3, DeliveryId(2, 0), 2), world.now)
        effects = machine.handle(FromClient(CommandNo(1, 1), SessionHeartbeat()), world.now + wait_s)
        for number in (90, 91):
            effects += machine.handle(Covered(number), world.now + wait_s)
        assert types(json.loads(one.body) for one in effects if isinstance(one, Deliver)) == due


@pytest.mark.parametrize("readable", [True, False])
def test_what_is_not_known_is_a_gap_until_something_is_delivered(readable: bool) -> None:
    world = World()
    made = world.last_n
    body = json.dumps({"type": "session.heartbeat_ack", "event_id": "e"}).encode() if readable else b"{"
    machine = DuplexSessionMachine.restore(world.checkpoints[-1].body, plugin=world.plugin, owner=2)
    told = ((DeliveryId(1, made + 7), body),)
    machine.handle(Adopted(2, told[0][0], 1, told, lost=readable), world.now)
    assert machine.gap
    machine.handle(Delivered(DeliveryId(2, made + 1)), world.now)
    assert not machine.gap


@pytest.mark.parametrize("more", [0, 1])
def test_more_than_is_remembered_is_a_gap_and_the_newest_are_known(more: int) -> None:
    world = World()
    made, count = world.last_n, MAX_TOLD + more
    told = tuple(
        (
            DeliveryId(1, made + n),
            json.dumps({"type": "error", "event_id": "e", "error": {"event_id": str(n)}}).encode(),
        )
        for n in range(1, count + 1)
    )
    machine = DuplexSessionMachine.restore(world.checkpoints[-1].body, plugin=world.plugin, owner=2)
    machine.handle(Adopted(2, told[-1][0], 1, told), world.now)
    assert machine.gap == bool(more)
    echoes = machine._ctx.state.echoes
    assert len(echoes.told) == MAX_TOLD
    assert echoes.claim(f"error {count}")
