"""A context that is lost with its stages is given to the next ones, where the pipeline asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from unit.session.core.fake_models import FakeModel, FakeState, Head, head_of
from unit.session.core.session_world import World, error_codes, pick, spoken
from unit.session.core.test_conversation import text

from duologue.model.outputs import ModelOutput, encode_output
from duologue.model.pipeline import PipelineSpec, StageSpec
from duologue.model.plugin import AppendPlan, Rebuild
from duologue.protocol.duplex import CancelInput, CancelResponse, CreateItem, CreateResponse, SessionUpdate
from duologue.session.core import (
    Abort,
    ControlStage,
    InputRecalled,
    OpenStages,
    RecallInput,
    SessionLimits,
    StageFailed,
    StageOutput,
    StagesLost,
    Submit,
    UnitsAborted,
)
from duologue.session.core.commands import RebindWanted
from duologue.session.core.rebuild import LAST_REPLAY, WINDOW
from duologue.session.core.stages import MAX_VOIDED

pytestmark = pytest.mark.unit


class Remembering(FakeModel):
    """Its pipeline rebuilds. Of a conversation it makes one replay for each item."""

    def __init__(self, rebuild: str = "input", pipelined: bool = True, **traits: Any) -> None:
        super().__init__(**traits)
        stages = (StageSpec("hear", "x:y", "a"), StageSpec("talk", "x:y", "b"))
        self.pipeline = PipelineSpec("fake", "x:y", stages, rebuild=rebuild, pipelined=pipelined)  # type: ignore[arg-type]
        self.rebuilds: list[Rebuild] = []

    def plan_rebuild(self, state: FakeState, rebuild: Rebuild) -> Sequence[AppendPlan]:
        self.rebuilds.append(rebuild)
        if rebuild.kind == "history":
            said = [Head("item", said=((str(item.role), item.text),)) for item in rebuild.items]
            return [AppendPlan(msgspec.msgpack.encode(one), stage=1) for one in said]
        return super().plan_rebuild(state, rebuild)


def heard(units: int, plugin: Remembering | None = None, **world: Any) -> World:
    """A session whose model has consumed so many units."""
    made = World(plugin or Remembering(), auto=True, **world)
    for _ in range(units):
        made.say()
        made.answer(ModelOutput(listen=True))
    return made


def lose(world: World, code: str = "worker_lost") -> list[dict[str, Any]]:
    return world.fact(StagesLost(world.fences[-1], code, "gone"))


def through(world: World, count: int = 100) -> list[int]:
    """Replays go through both stages; their numbers, in order."""
    done: list[int] = []
    while world.waiting and world.waiting[0].replay and len(done) < count:
        unit = world.waiting.pop(0)
        world.fact(StageOutput(unit.fence, 0, 1, unit.unit, unit.turn_id, True, unit.head, unit.frames))
        relayed = world.waiting.pop()
        assert (relayed.unit, relayed.stage, relayed.replay, relayed.frames) == (unit.unit, 1, True, unit.frames)
        said = encode_output(spoken("never"))
        world.fact(StageOutput(unit.fence, 1, -1, unit.unit, unit.turn_id, True, said, (b"\1\0" * 1920,)))
        done.append(unit.unit)
    return done


def test_what_the_stages_consumed_is_recorded_once_and_in_order() -> None:
    world = heard(3)
    assert [unit.unit for unit in world.recorded] == [0, 1, 2]
    assert [unit.frames for unit in world.recorded] == [submit.frames for submit in world.submits]
    world.say()
    assert len(world.recorded) == 3, "a unit under way is not heard yet"


def test_a_pipeline_that_does_not_ask_records_and_rebuilds_nothing() -> None:
    world = World(auto=True)
    world.say()
    world.answer(ModelOutput(listen=True))
    lose(world)
    world.say()
    assert not world.recorded and not any(isinstance(effect, RecallInput) for effect in world.effects)
    assert not any(submit.replay for submit in world.submits)


def test_a_lost_worker_is_replaced_and_its_successor_hears_what_it_had_heard() -> None:
    world = heard(20)
    first = [submit.frames for submit in world.submits]
    world.say()
    under_way = world.waiting[-1].unit
    before = len(world.submits)
    assert not pick(lose(world), "error")
    assert len(world.waiting) == WINDOW and all(unit.replay for unit in world.waiting)
    events = len(world.events)
    assert through(world) == list(range(LAST_REPLAY, LAST_REPLAY - 20, -1))
    assert len(world.events) == events, "of a replay nothing is told"
    replayed = [submit for submit in world.submits[before:] if submit.replay and submit.stage == 0]
    assert [submit.frames for submit in replayed] == first
    assert {submit.fence for submit in replayed} == {world.fences[-1]}
    assert [(unit.unit, unit.attempt, unit.replay) for unit in world.waiting] == [(under_way, 1, False)]
    world.answer(ModelOutput(listen=True))
    assert [unit.unit for unit in world.recorded] == [*range(20), under_way]
    assert world.machine.observed.rebuilds == {("input", "done"): 1}
    assert world.machine.observed.rebuild_units == 20


def test_live_input_waits_for_the_rebuild_and_then_goes_on() -> None:
    world = heard(4)
    lose(world)
    world.say(240)
    assert all(unit.replay for unit in world.waiting)
    through(world)
    assert [unit.unit for unit in world.waiting] == [4, 5, 6] and not any(unit.replay for unit in world.waiting)


def test_only_what_was_heard_before_the_units_under_way_is_asked_for() -> None:
    world = heard(3)
    world.say(160)
    lose(world)
    (question,) = [effect for effect in world.effects if isinstance(effect, RecallInput)]
    assert question.below == 3


def ask_and_cancel(world: World) -> None:
    """The epoch moves on: a typed question, and nobody waits for its answer."""
    world.send(CreateItem(item=text("anybody there?")))
    world.send(CreateResponse())
    world.send(CancelResponse())


def test_a_cancel_in_the_middle_of_a_rebuild_does_not_disturb_it() -> None:
    world = heard(12)
    lose(world)
    epoch = world.machine.fence.epoch
    through(world, 2)
    ask_and_cancel(world)
    assert world.machine.fence.epoch == epoch + 1
    world.say()
    assert not any(isinstance(effect, Abort) for effect in world.effects)
    assert len(through(world)) == 10
    assert sum(isinstance(effect, Abort) for effect in world.effects) == 1, "told when the context is there"
    assert [(unit.fence.epoch, unit.replay) for unit in world.waiting] == [(epoch + 1, False)]


def test_a_rebuild_that_takes_too_long_is_cut_short_and_told() -> None:
    world = heard(30, limits=SessionLimits(max_rebuild_queue_s=0.4))
    lose(world)
    for _ in range(5):
        assert not world.say()
    seen = world.say()
    assert error_codes(seen) == ["context_lost"]
    assert [unit.unit for unit in world.waiting if not unit.replay] == list(range(30, 36))
    assert world.machine.observed.rebuilds == {("input", "cut_short"): 1}
    late = world.waiting[0]
    world.fact(StageOutput(late.fence, 1, -1, late.unit, late.turn_id, True, encode_output(ModelOutput())))
    assert world.machine.stale["replay"] == 1


@pytest.mark.parametrize("error", ["store_away", "unreadable"])
def test_a_store_that_is_away_costs_the_context_and_nothing_else(error: str) -> None:
    world = heard(3, holds=["recalls"])
    lose(world)
    (question,) = [effect for effect in world.effects if isinstance(effect, RecallInput)]
    seen = world.fact(InputRecalled(question.ticket, error=error))
    assert error_codes(seen) == ["context_lost"]
    world.say()
    assert [unit.replay for unit in world.waiting] == [False]
    world.fact(InputRecalled(question.ticket, tuple(world.recorded)))
    assert world.machine.stale["recall"] == 1


def test_nothing_recorded_is_nothing_to_tell() -> None:
    world = heard(2)
    world.recorded.clear()
    assert not pick(lose(world), "error")
    assert world.machine.observed.rebuilds == {("input", "empty"): 1}


def test_a_replay_that_the_model_cannot_take_ends_the_rebuild_and_not_the_session() -> None:
    world = heard(3)
    lose(world)
    unit = world.waiting[0]
    seen = world.fact(StageFailed(unit.fence, 0, unit.unit, "engine_error", "no"))
    assert error_codes(seen) == ["context_lost"] and world.closed is None
    world.say()
    assert not world.waiting[-1].replay


def test_replays_under_way_at_two_deaths_end_the_session() -> None:
    world = heard(3)
    for _ in range(2):
        assert not pick(lose(world), "error")
        assert world.waiting[0].replay
    assert error_codes(lose(world)) == ["poison_input"]
    assert world.closed == "poison_input"


def test_live_units_are_not_blamed_for_a_death_during_the_rebuild() -> None:
    world = heard(3)
    world.say()
    lose(world)
    lose(world)
    assert world.closed is None
    through(world)
    assert [(unit.unit, unit.attempt) for unit in world.waiting] == [(3, 2)]


def test_the_answer_that_was_being_made_is_over_and_its_units_are_heard_again() -> None:
    world = heard(2)
    world.say()
    world.answer(spoken("hello"))
    world.say()
    seen = lose(world)
    assert pick(seen, "response.done")[0]["response"]["status"] == "failed"
    assert [unit.unit for unit in world.recorded] == [0, 1, 2]
    assert len(through(world)) == 3
    assert [unit.unit for unit in world.waiting] == [3]


def test_units_that_a_cancelled_answer_had_consumed_are_a_part_of_the_context() -> None:
    world = heard(2, holds=["aborts"])
    world.say()
    world.answer(spoken("hello"))
    world.say(240)
    world.send(CancelResponse())
    (abort,) = [effect for effect in world.effects if isinstance(effect, Abort)]
    world.fact(UnitsAborted(abort.fence, (3,), (4, 5)))
    assert [unit.unit for unit in world.recorded] == [0, 1, 2, 3]


def test_input_that_was_cancelled_and_heard_all_the_same_is_a_part_of_the_context() -> None:
    world = heard(2, holds=["aborts"])
    world.say(240)
    world.send(CancelInput())
    (abort,) = [effect for effect in world.effects if isinstance(effect, Abort)]
    assert [unit.unit for unit in world.recorded] == [0, 1]
    world.fact(UnitsAborted(abort.fence, (2, 3), (4,)))
    assert [unit.unit for unit in world.recorded] == [0, 1, 2, 3]
    world.fact(UnitsAborted(abort.fence, (2, 3, 4), ()))
    assert [unit.unit for unit in world.recorded] == [0, 1, 2, 3], "each unit once"


def test_cancelled_units_that_nobody_accounts_for_are_bounded() -> None:
    world = heard(1, Remembering(max_in_flight=200), holds=["aborts"])
    world.say(80 * (MAX_VOIDED + 3))
    assert len(world.waiting) == MAX_VOIDED + 3
    world.send(CancelInput())
    (abort,) = [effect for effect in world.effects if isinstance(effect, Abort)]
    world.fact(UnitsAborted(abort.fence, tuple(range(1, MAX_VOIDED + 4)), ()))
    assert [unit.unit for unit in world.recorded] == [0, *range(4, MAX_VOIDED + 4)]


def test_a_conversation_is_given_back_as_the_plugin_plans_it() -> None:
    world = World(Remembering("history"), auto=True, initial_user_text="hi")
    lose(world)
    assert [head_of(unit.head).said for unit in world.waiting] == [(("user", "hi"),)]
    assert world.waiting[0].replay and world.waiting[0].stage == 1
    unit = world.waiting.pop(0)
    world.fact(StageOutput(unit.fence, 1, -1, unit.unit, 0, True, encode_output(ModelOutput())))
    assert world.machine.observed.rebuilds == {("history", "done"): 1}
    assert not world.recorded


def test_a_full_context_is_rolled_over_when_nothing_is_being_said() -> None:
    world = heard(3)
    world.say()
    opened = sum(isinstance(effect, OpenStages) for effect in world.effects)
    world.answer(spoken("hello", rebind="context_rollover"))
    assert sum(isinstance(effect, OpenStages) for effect in world.effects) == opened
    world.say()
    world.answer(spoken("bye", end_of_turn=True))
    assert sum(isinstance(effect, OpenStages) for effect in world.effects) == opened + 1
    plugin = world.plugin
    assert isinstance(plugin, Remembering) and plugin.rebuilds[-1].reason == "context_rollover"
    assert len(through(world)) == 5 and not error_codes(world.events)


def test_a_unit_that_does_not_fit_rolls_over_at_once_and_only_once() -> None:
    world = heard(3)
    for attempt in range(2):
        if not attempt:
            world.say()
        unit = world.waiting[-1]
        world.fact(StageFailed(unit.fence, 0, unit.unit, "context_exhausted", "full", retryable=True))
        if not attempt:
            assert not error_codes(world.events)
            through(world)
            assert [(unit.unit, unit.attempt) for unit in world.waiting] == [(3, 1)]
    assert error_codes(world.events) == ["context_exhausted"] and world.closed is None


def test_an_engine_whose_cancel_drops_the_context_is_given_it_again() -> None:
    world = heard(2, Remembering(cancel_keeps_context=False))
    world.say()
    world.answer(spoken("hello"))
    binding = world.fences[-1].binding
    world.send(CancelResponse())
    assert world.fences[-1].binding == binding + 1
    assert len(through(world)) == 3
    assert world.machine.observed.rebuilds == {("input", "done"): 1}
    world.say()
    assert [unit.replay for unit in world.waiting] == [False]


def test_an_update_reaches_stages_that_are_being_given_their_context() -> None:
    world = heard(2, Remembering(locks_instructions=False))
    lose(world)
    ask_and_cancel(world)
    world.send(SessionUpdate(session={"instructions": "be brief"}))
    (control,) = [effect for effect in world.effects if isinstance(effect, ControlStage)]
    assert control.fence == world.waiting[0].fence, "they know of no later epoch"


def test_a_session_goes_on_from_a_snapshot_in_the_middle_of_a_rebuild() -> None:
    world = heard(12)
    lose(world)
    through(world, 3)
    world.restart()
    assert len(through(world)) == 9
    world.say()
    assert not world.waiting[-1].replay


def test_units_go_one_by_one_where_the_pipeline_says_so() -> None:
    world = World(Remembering("none", pipelined=False), auto=True)
    world.say(400)
    seen: list[int] = []
    while world.waiting:
        assert len(world.waiting) == 1, "a unit enters when the one before it has left"
        seen.append(world.waiting[0].unit)
        world.answer(ModelOutput(listen=True))
    assert seen == [0, 1, 2, 3, 4]


def test_the_first_unit_of_a_response_is_urgent_in_every_stage() -> None:
    world = World(auto=True)
    world.say()
    world.answer(spoken("hello"))
    world.say()
    unit = world.waiting.pop(0)
    assert unit.urgent
    world.fact(StageOutput(unit.fence, 0, 1, unit.unit, unit.turn_id, True, unit.head, unit.frames))
    relayed = world.waiting.pop()
    assert isinstance(relayed, Submit) and relayed.stage == 1 and relayed.urgent
    world.say()
    assert not world.waiting[-1].urgent


def test_a_worker_that_is_taken_out_of_service_is_left_when_nothing_is_being_said() -> None:
    world = World(auto=True)
    world.say(160)
    world.answer(spoken("hello "))
    binding = world.machine.fence.binding
    world.fact(RebindWanted("worker_drained"))
    assert world.machine.fence.binding == binding, "it speaks"
    world.answer(spoken("there", end_of_turn=True))
    assert world.machine.fence.binding == binding + 1
    assert not [done for done in pick(world.events, "response.done") if done["response"]["status"] == "failed"]
