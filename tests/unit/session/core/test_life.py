"""Deadlines, attachment, closing, stages that fail, and faults of our own."""

from __future__ import annotations

from typing import cast

import pytest
from unit.session.core.event_rules import violations
from unit.session.core.session_world import World, error_codes, pick, sound, spoken, types
from unit.session.core.test_responses import SHORT_TAIL, TAIL, asked

from duologue.fence import CommandNo, DeliveryId
from duologue.model.outputs import ModelOutput
from duologue.protocol.duplex import AppendAudio, Commit, Dialect, SessionClose, SessionHeartbeat
from duologue.session.core import (
    Adopted,
    Attached,
    CheckpointWanted,
    Close,
    CloseRequested,
    CloseStages,
    Deliver,
    Detached,
    DuplexSessionMachine,
    FromClient,
    InputRefused,
    OpenStages,
    SessionLimits,
    StageFailed,
    StageOutput,
    StagesLost,
    StagesReady,
    Submit,
    TellFault,
)

pytestmark = pytest.mark.unit


# -- time -------------------------------------------------------------------------------------------------


def test_an_idle_session_expires_and_frames_keep_it() -> None:
    world = World(idle_timeout_s=2)
    for _ in range(5):
        world.advance(1.9)
        world.send(SessionHeartbeat())
    assert world.closed is None
    seen = world.advance(2.1)
    assert (types(seen), seen[0]["reason"]) == (["session.expired"], "idle_ttl_expired")
    assert world.machine.closed


def test_a_detached_session_has_its_grace_and_heartbeats_do_not_help() -> None:
    world = World(disconnect_grace_s=5)
    world.fact(Attached(1))
    world.fact(Detached(1))
    assert world.machine.detached_since == 0
    world.advance(4)
    world.fact(Attached(2))
    world.advance(20)
    assert world.closed is None
    world.fact(Detached(2))
    seen = world.advance(6)
    assert seen[0]["reason"] == "disconnect_grace_expired"


def test_a_clean_close_ends_a_session_of_the_openai_dialects_only() -> None:
    for dialect, ended in ((Dialect.openai, "client_close"), (Dialect.duplex, None)):
        world = World(dialect=dialect)
        world.fact(Detached(0, clean=True))
        assert world.closed == ended


def test_the_maximum_is_announced_and_kept() -> None:
    world = World(limits=SessionLimits(max_session_s=100, idle_ttl_s=1000))
    seen = world.advance(45)
    assert (types(seen), seen[0]["time_left_ms"]) == (["session.expiring"], 60_000)
    seen = world.advance(60)
    assert (types(seen), seen[0]["reason"]) == (["session.expired"], "max_session_expired")
    assert World(limits=SessionLimits(max_session_s=30)).advance(0.01)[0]["type"] == "session.expiring"


@pytest.mark.parametrize("dialect", [Dialect.openai, Dialect.openai_beta])
def test_lif_07_clients_of_the_openai_dialects_are_told_of_the_maximum_as_an_error(dialect: Dialect) -> None:
    """They know no `session.expired`, and nothing that announces it but `expires_at`."""
    world = World(dialect=dialect, limits=SessionLimits(max_session_s=100, idle_ttl_s=1000))
    assert world.advance(99) == []
    seen = world.advance(1)
    assert (types(seen), error_codes(seen)) == (["error"], ["session_expired"])
    assert "max_session_expired" in seen[0]["error"]["message"]
    [told] = [effect for effect in world.effects if isinstance(effect, Deliver)][-1:]
    assert told.close_code == 1001
    assert world.closed == "max_session_expired" and world.send(SessionHeartbeat()) == []


def test_closing_frees_the_stages_first_and_nothing_follows() -> None:
    world = asked()
    world.effects.clear()
    seen = world.send(SessionClose(reason="goodbye"))
    assert types(seen) == [*SHORT_TAIL, "session.closed"]
    assert pick(seen, "response.done")[0]["response"]["status_details"]["reason"] == "session_closed"
    kinds = [type(effect) for effect in world.effects]
    assert CloseStages in kinds and kinds[-1] is Close
    assert world.send(SessionHeartbeat()) == []
    assert world.machine.next_deadline() is None
    assert list(violations(world.events)) == []


def test_a_terminal_event_that_is_too_large_loses_its_details() -> None:
    (event,) = World().send(SessionClose(reason="x" * 5000))
    assert event["reason"] == "close_details_exceed_output_limit"


def test_the_shard_may_end_a_session_in_any_dialect() -> None:
    for dialect, name in ((Dialect.duplex, "session.closed"), (Dialect.openai, "error")):
        world = World(dialect=dialect)
        assert types(world.fact(CloseRequested("drained", 1012))) == [name]
        assert world.closed == "drained"


# -- input ------------------------------------------------------------------------------------------------


def test_a_command_is_applied_once() -> None:
    world = World(auto=True)
    world.say()
    world.fact(FromClient(CommandNo(1, 1), AppendAudio(audio=sound(80))))
    world.fact(FromClient(CommandNo(0, 9), AppendAudio(audio=sound(80))))
    assert len(world.submits) == 1
    assert world.machine.stale == {"command": 2}


def test_a_long_payload_is_converted_elsewhere_and_the_order_stays() -> None:
    world = World(holds=["offloads"])
    world.say(1000)
    assert world.send(Commit(response_create=True)) == []
    assert world.machine.queued_commits == 1
    assert world.machine.applied == CommandNo()
    assert types(world.send(SessionHeartbeat())) == ["session.heartbeat_ack"]
    world.restart()
    world.fact(InputRefused("x", "input_backpressure", "full", 100))
    _finish_offload(world)
    assert "response.created" in types(world.events)
    assert error_codes(world.events) == ["input_backpressure"]
    assert world.machine.applied == CommandNo(1, 3)
    assert len(world.submits) == 13
    assert world.machine.pending_input_bytes == 13 * 5120


@pytest.mark.parametrize("waits", [False, True])
def test_sound_that_can_never_fit_is_not_to_be_sent_again(waits: bool) -> None:
    world = World(holds=["offloads"], limits=SessionLimits(max_pending_input_bytes=100_000))
    if waits:
        world.say(1000)
    world.say(1000)
    world.say(2000)
    _finish_offload(world)
    told = [event["error"] for event in pick(world.events, "error")]
    assert [error["param"] for error in told] == ["audio"] * len(told)
    assert [error["retryable"] for error in told] == ([True, False] if waits else [False])


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_refused_is_covered_like_what_was_applied(waits: bool) -> None:
    world = World(holds=["offloads"])
    if waits:
        world.say(1000)
    for _ in range(3):
        world.sent += 1
        no = CommandNo(1, world.sent)
        world.fact(InputRefused("x", "input_backpressure", "full", 100, no))
        world.fact(InputRefused("x", "input_backpressure", "full", 100, no))
    world.fact(CheckpointWanted())
    if waits:
        _finish_offload(world)
    assert error_codes(world.events) == ["input_backpressure"] * 3
    assert world.machine.applied == world.machine.covered == CommandNo(1, world.sent)
    assert world.machine.last_client_event_id == "x"


def _finish_offload(world: World, error: str = "") -> None:
    from duologue.session.core import Offload, Offloaded, run_offload

    effect = next(effect for effect in reversed(world.effects) if isinstance(effect, Offload))
    body = b"" if error else run_offload(effect.kind, effect.body)
    world.fact(Offloaded(effect.ticket, body, error))


def test_a_failed_conversion_is_one_refusal() -> None:
    for error, code in (("not finite", "bad_audio"), ("offload_full", "input_backpressure")):
        world = World(holds=["offloads"])
        world.say(1000)
        _finish_offload(world, error)
        assert error_codes(world.events) == [code]
        assert world.machine.pending_input_bytes == 0


def test_input_cancel_drops_what_was_sent_before_it_from_the_queue() -> None:
    from duologue.protocol.duplex import CancelInput

    world = World(holds=["offloads"])
    world.say(1000)
    world.send(Commit(response_create=True))
    assert types(world.send(CancelInput())) == ["input_audio_buffer.cleared"]
    assert (world.machine.queued_commits, world.machine.pending_input_bytes) == (0, 0)
    _finish_offload(world)
    assert world.machine.stale == {"offload": 1}
    assert world.machine.applied == CommandNo(1, 3)


# -- stages -----------------------------------------------------------------------------------------------


def test_outputs_for_a_stage_are_relayed_and_the_unit_is_over_when_all_are_through() -> None:
    world = World(auto=True)
    world.say()
    unit = world.waiting.pop(0)
    world.fact(StageOutput(unit.fence, 0, 1, unit.unit, 0, True, b"between", (b"frame",)))
    relayed = world.submits[-1]
    assert (relayed.stage, relayed.unit, relayed.head, relayed.frames) == (1, unit.unit, b"between", (b"frame",))
    assert world.machine.pending_input_bytes == 5120
    assert types(world.answer(ModelOutput(listen=True))) == ["response.listen"]
    assert world.machine.pending_input_bytes == 0


def test_a_failed_unit_ends_its_response_and_nothing_else() -> None:
    world = asked()
    unit = world.waiting[0]
    seen = world.fact(StageFailed(unit.fence, 0, unit.unit, "engine_error", "it broke"))
    assert types(seen) == ["error", *SHORT_TAIL, "turn.event"]
    assert (seen[0]["error"]["type"], seen[0]["error"]["retryable"]) == ("server_error", False)
    world.say(160)
    world.send(Commit(response_create=True))
    world.answer(spoken("one"))
    assert types(world.answer(spoken("two", end_of_turn=True)))[-2] == "response.done"


def test_a_lost_binding_is_replaced_and_units_are_tried_again() -> None:
    world = World(auto=True)
    world.say(240)
    world.answer(spoken("one "))
    seen = world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))
    assert pick(seen, "response.done")[0]["response"]["status_details"]["reason"] == "worker_lost"
    opened = [effect.fence.binding for effect in world.effects if isinstance(effect, OpenStages)]
    assert opened == [1, 2]
    assert len(world.waiting) == 2
    assert world.machine.pending_input_bytes == 2 * 5120


def test_a_unit_that_sees_two_losses_ends_the_session() -> None:
    world = World(auto=True)
    world.say(80)
    for _ in range(2):
        world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))
    assert error_codes(world.events) == ["poison_input"]
    assert world.closed == "poison_input"


def test_workers_that_are_lost_before_they_open_are_not_blamed_on_a_unit_that_saw_one_loss() -> None:
    world = World(auto=True)
    world.say(80)
    world.holds.add("ready")
    for _ in range(4):
        world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))
    assert world.closed is None and error_codes(world.events) == []
    world.fact(StagesReady(world.fences[-1]))
    assert types(world.answer(ModelOutput(listen=True))) == ["response.listen"]


def test_workers_without_room_are_not_blamed_on_a_unit_that_saw_one_loss() -> None:
    world = World(auto=True)
    world.say(80)
    world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))
    for _ in range(3):
        world.fact(StagesLost(world.fences[-1], "resource_exhausted", "no slot", refused=True))
    assert world.closed is None and error_codes(world.events) == []
    assert len({effect.fence.binding for effect in world.effects if isinstance(effect, OpenStages)}) == 5


@pytest.mark.parametrize("was_open", [False, True], ids=["at the first binding", "at a later one"])
def test_an_open_that_meets_a_worker_being_drained_goes_to_another_and_nothing_is_lost(was_open: bool) -> None:
    world = World(holds=() if was_open else ["ready"])
    if was_open:
        world.holds.add("ready")
        world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))
    world.say(160)
    world.send(Commit(response_create=True))
    first = world.fences[-1]
    for _ in range(3):
        assert world.fact(StagesLost(world.fences[-1], "worker_drained", "no more sessions", refused=True)) == []
    assert world.closed is None and world.fences[-1].binding == first.binding + 3
    world.fact(StagesReady(first))
    assert world.submits == [], "those have refused"
    world.fact(StagesReady(world.fences[-1]))
    assert len(world.submits) == 2
    world.answer(spoken("three"))
    seen = world.answer(spoken("four", end_of_turn=True))
    assert pick(seen, "response.done")[0]["response"]["status"] == "completed"


def test_stages_that_never_open_end_the_session_with_their_reason() -> None:
    world = World(holds=["ready"])
    world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))
    assert world.closed is None and len(world.fences) == 2, "a death before they were open is one like any other"
    world.fact(StagesLost(world.fences[-1], "resource_exhausted", "no slot", refused=True))
    assert error_codes(world.events) == ["resource_exhausted"]
    assert world.closed == "resource_exhausted"


def test_stages_that_are_lost_again_and_again_before_they_open_end_the_session() -> None:
    world = World(holds=["ready"])
    for _ in range(3):
        assert world.closed is None
        world.fact(StagesLost(world.fences[-1], "worker_lost", "gone"))
    assert world.closed == "worker_lost"


def test_adoption_ends_what_was_open_and_tells_the_rest_again() -> None:
    world = World(auto=True, holds=["delivers"])
    world.say(240)
    world.answer(spoken("one "))
    checkpoint = world.checkpoints[-1].body
    heir = DuplexSessionMachine.restore(checkpoint, plugin=world.plugin, owner=2)
    effects = heir.handle(Adopted(2, DeliveryId(1, 1), 1), 5.0)
    assert heir.fence.owner == 2 and heir.fence.binding == 2 and heir.fence.epoch == 1
    opened = [effect for effect in effects if isinstance(effect, OpenStages)]
    assert opened[0].fence == heir.fence
    told = [effect for effect in effects if isinstance(effect, Deliver)]
    assert [(deliver.of, deliver.n) for deliver in told] == [(1, n) for n in range(2, len(told) + 2)]
    assert not [effect for effect in effects if isinstance(effect, Submit)]


# -- our own faults ---------------------------------------------------------------------------------------


def test_a_fault_costs_the_response_and_the_second_the_session() -> None:
    world = World(auto=True)
    world.say(320)
    world.answer(spoken("one "))
    world.answer(spoken("two "))
    world.plugin.faults = 1
    seen = world.say()
    assert types(seen) == ["error", *TAIL]
    assert seen[0]["error"]["code"] == "internal_error"
    assert pick(seen, "response.output_audio_transcript.done")[0]["transcript"] == "one two "
    world.say(80)
    assert pick(world.answer(spoken("two", end_of_turn=True)), "response.done")
    world.plugin.faults = 1
    world.say()
    assert world.closed == "internal_error"
    assert list(violations(world.events)) == []
    effects = [effect for step in world.machine.story for effect in cast(list[object], step["effects"])]
    assert {"effect": "Close", "reason": "internal_error"} in effects


def test_a_fault_is_told_by_its_place_and_without_words() -> None:
    world = World(auto=True)
    world.plugin.faults = 1
    world.say()
    [told] = [effect for effect in world.effects if isinstance(effect, TellFault)]
    kind, *lines = told.where.splitlines()
    assert kind.isidentifier() and any("plan_unit" in line for line in lines)
    assert "RuntimeError: " not in told.where  # what follows it may quote the session


def test_faults_far_apart_are_forgiven() -> None:
    world = World(auto=True)
    for _ in range(3):
        world.plugin.faults = 1
        world.say()
        world.say()
        world.advance(61)
    assert world.closed is None
    assert error_codes(world.events) == ["internal_error"] * 3
