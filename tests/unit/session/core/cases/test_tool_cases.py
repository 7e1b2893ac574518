"""Faults of function calls that users reported elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from unit.session.core.fake_models import planning
from unit.session.core.session_world import World, error_codes, pick, spoken, types
from unit.session.core.test_conversation import CALL, result, text
from unit.session.core.test_plans import heard

from duologue.model.outputs import ModelOutput, ToolCall
from duologue.protocol.duplex import (
    BargeIn,
    Commit,
    CreateItem,
    CreateResponse,
    Dialect,
    RetrieveItem,
)

pytestmark = pytest.mark.unit


def calling(
    *calls: ToolCall, dialect: Dialect = Dialect.openai, said: str = "", plans: bool = True, **session: Any
) -> World:
    """A question in words; the model answers with function calls, behind what it says."""
    world = World(planning() if plans else None, dialect=dialect, **{"turn_detection": None, **session})
    world.send(CreateItem(item=text("what is the weather, and what time is it?")))
    world.send(CreateResponse())
    if not plans:
        world.advance(0.08)
    if said:
        world.answer(spoken(said), last=False)
    world.answer(ModelOutput(tool_calls=calls, end_of_turn=True))
    return world


WEATHER, CLOCK = ToolCall("weather", '{"city": "Paris"}', "call_w"), ToolCall("clock", "{}", "call_c")


# -- TOO-01 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupted", [True, False])
@pytest.mark.parametrize("plans", [True, False])
def test_too_01_a_call_that_nobody_answers_holds_nothing(plans: bool, interrupted: bool) -> None:
    world = calling(WEATHER, said="let me see ", plans=plans, dialect=Dialect.duplex)
    item_id = pick(world.events, "response.function_call_arguments.done")[0]["item_id"]
    if interrupted:
        world.send(BargeIn())
    world.advance(1.0)
    world.say(80)
    seen = world.send(Commit(response_create=True))
    assert "response.created" in types(seen) and error_codes(seen) == []
    (told,) = world.send(RetrieveItem(item_id=item_id))
    assert told["item"]["status"] == "incomplete"
    code = "stale_function_call_output" if interrupted else "late_function_call_output"
    (late,) = world.send(result("call_w"))
    assert (late["error"]["code"], late["error"]["param"]) == (code, "item.call_id")
    if plans:
        world.answer(heard("never mind"))
    while world.waiting:
        world.answer(spoken("of course", end_of_turn=len(world.waiting) == 1))
    assert pick(world.events, "response.done")[-1]["response"]["status"] == "completed"


def test_too_01_a_call_is_given_up_after_its_time() -> None:
    world = calling(WEATHER)
    world.advance(world.limits.tool_timeout_s + 1)
    assert error_codes(world.send(result("call_w"))) == ["late_function_call_output"]
    world.send(CreateItem(item=text("never mind")))
    assert "response.created" in types(world.send(CreateResponse()))


# -- TOO-02 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart_s", [0.0, 0.001, 0.05])
@pytest.mark.parametrize("dialect", [Dialect.openai, Dialect.openai_beta])
def test_too_02_two_results_and_two_creates_are_one_answer_of_both(dialect: Dialect, apart_s: float) -> None:
    world = calling(WEATHER, CLOCK, dialect=dialect)
    prompts = len(world.submits)
    seen = []
    for call_id, output in (("call_w", "rain"), ("call_c", "noon")):
        seen += world.send(result(call_id, output))
        seen += world.send(CreateResponse(event_id=f"create_{call_id}"))
        seen += world.advance(apart_s)
    (refused,) = pick(seen, "error")
    assert refused["error"]["code"] == "conversation_already_has_active_response"
    assert refused["error"]["event_id"] == "create_call_c"
    assert len(world.submits) == prompts + 1, "one answer"
    outputs = [item.output for item in world.plugin.asked[-1].items if item.type == "function_call_output"]
    assert outputs == ["rain", "noon"], "made of both results"
    world.answer(spoken("rain, and it is noon", end_of_turn=True))
    assert [event["response"]["status"] for event in pick(world.events, "response.done")] == ["completed"] * 4


def test_too_02_an_answer_before_any_result_does_not_wait() -> None:
    """'One moment' is said at once, and the second create of that moment is refused by its id."""
    world = calling(WEATHER, CLOCK)
    world.send(CreateItem(item=text("are you there?")))
    world.send(CreateResponse())
    world.answer(spoken("one moment", end_of_turn=True))
    assert pick(world.events, "response.done")[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("how", ["time", "turn", "cancel"])
def test_too_02_an_answer_that_waits_for_a_result_does_not_wait_for_ever(how: str) -> None:
    world = calling(WEATHER, CLOCK, dialect=Dialect.duplex)
    world.send(result("call_w", "rain"))
    world.send(CreateResponse())
    prompts = len(world.plugin.asked)
    if how == "time":
        world.advance(world.limits.tool_timeout_s + 1)
    elif how == "turn":
        world.say(800)
        world.send(Commit(response_create=False))
    else:
        assert "response.done" in types(world.send(BargeIn()))
        world.send(CreateItem(item=text("again")))
        world.send(CreateResponse())
    assert len(world.plugin.asked) == prompts + 1
    outputs = [item.output for item in world.plugin.asked[-1].items if item.type == "function_call_output"]
    assert outputs == ["rain"]


# -- TOO-06 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("said", ["", "let me see "])
def test_too_06_a_call_is_told_with_its_name_before_its_arguments(dialect: Dialect, said: str) -> None:
    """Behind words and without them; what is told of the arguments is JSON text."""
    world = calling(WEATHER, said=said, dialect=dialect)
    at = next(n for n, event in enumerate(world.events) if event.get("item", {}).get("type") == "function_call") - 1
    told = types(world.events[at:])[: len(CALL)]
    left_out = {
        Dialect.duplex: (),
        Dialect.openai: ("conversation.item.created",),
        Dialect.openai_beta: ("conversation.item.added", "conversation.item.done"),
    }
    wanted = [name for name in CALL if name not in left_out[dialect]]
    assert told[: len(wanted)] == wanted
    added = pick(world.events[at:], "response.output_item.added")[0]["item"]
    assert (added["name"], added["call_id"], added["arguments"]) == ("weather", "call_w", "")
    done = pick(world.events, "response.function_call_arguments.done")[0]
    assert json.loads(done["arguments"]) == {"city": "Paris"}
    pieces = [event["delta"] for event in pick(world.events, "response.function_call_arguments.delta")]
    assert "".join(pieces) == done["arguments"]
    finished = [event["item"] for event in pick(world.events, "response.output_item.done")]
    assert [item["arguments"] for item in finished if item["type"] == "function_call"] == [done["arguments"]]


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"text"', "{'city': 'Paris'}", '{"a": NaN}'])
@pytest.mark.parametrize("auto", [True, False])
def test_too_06_arguments_that_are_no_object_are_no_call(auto: bool, arguments: str) -> None:
    world = World(auto=auto)
    world.say(80)
    if not auto:
        world.send(Commit(response_create=True))
    seen = world.answer(ModelOutput(tool_calls=(ToolCall("weather", arguments, "c"),)))
    assert [event["event"]["raw"] for event in pick(seen, "duplex.function_call.done")] == [arguments]
    assert pick(seen, "response.function_call_arguments.done") == []
    assert error_codes(world.send(result("c"))) == ["invalid_function_call_output"]
