"""Items, tool calls, updates, signals."""

from __future__ import annotations

import pytest
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, error_codes, pick, sound, spoken, types

from duologue.model.outputs import ModelOutput, ToolCall
from duologue.protocol.duplex import (
    AppendText,
    CancelInput,
    Commit,
    ContentPart,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Dialect,
    Item,
    RealtimeProtocolError,
    RetrieveItem,
    SessionResume,
    SessionUpdate,
    TurnSignal,
    function_call_item,
    message_item,
)
from duologue.protocol.realtime.commands import ItemAudio
from duologue.session.core import ControlStage

pytestmark = pytest.mark.unit

WHOLE = ["conversation.item.added", "conversation.item.created", "conversation.item.done"]
CALL = [
    "response.created",
    "conversation.item.added",
    "conversation.item.created",
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]


def text(words: str, item_id: str = "", role: str = "user") -> Item:
    return message_item(item_id, role, ContentPart(type="input_text", text=words))


def result(call_id: str = "call_1", output: str = "{}") -> CreateItem:
    return CreateItem(item=Item(id="", type="function_call_output", call_id=call_id, output=output))


# -- items ------------------------------------------------------------------------------------------------


def test_previous_item_id_decides_the_order() -> None:
    world = World()
    wanted = [("a", None, None), ("b", "a", "a"), ("c", "root", None), ("d", "a", "a"), ("e", None, "b")]
    for name, after, told in wanted:
        seen = world.send(CreateItem(item=text(name, name), previous_item_id=after))
        assert types(seen) == WHOLE
        assert {event["previous_item_id"] for event in seen} == {told}, name
    assert [entry["id"] for entry in _gap(world)] == ["c", "a", "d", "b", "e"]


def _gap(world: World) -> list[dict[str, str]]:
    import json

    entries: list[dict[str, str]] = json.loads(world.machine.items_for_gap())
    return entries


def test_a_duplicate_id_and_an_unknown_predecessor_change_nothing() -> None:
    world = World()
    world.send(CreateItem(item=text("first", "m")))
    assert error_codes(world.send(CreateItem(item=text("second", "m")))) == ["item_create_duplicate_item_id"]
    assert error_codes(world.send(CreateItem(item=text("x", "y"), previous_item_id="no"))) == ["item_not_found"]
    assert _gap(world) == [{"id": "m", "role": "user", "text": "first"}]


def test_an_empty_message_is_added_but_never_done() -> None:
    world = World()
    assert types(world.send(CreateItem(item=Item(id="", role="user", content=())))) == WHOLE[:2]
    assert error_codes(world.send(CreateResponse())) == ["response_create_without_input"]


def test_delete_forgets() -> None:
    world = World()
    world.send(CreateItem(item=text("x", "m")))
    assert types(world.send(DeleteItem(item_id="m"))) == ["conversation.item.deleted"]
    assert error_codes(world.send(RetrieveItem(item_id="m"))) == ["item_not_found"]


def test_an_audio_item_is_a_committed_turn() -> None:
    world = World()
    item = Item(id="spoken", role="user", content=(ContentPart(type="input_audio"),))
    part = ItemAudio(content_index=0, audio=sound(160), format="pcm16", sample_rate_hz=16_000)
    seen = world.send(CreateItem(item=item, audio=(part,)))
    assert types(seen) == [*WHOLE[:2], "input_audio_buffer.committed", WHOLE[2]]
    world.send(CreateResponse())
    assert len(world.submits) == 2


def test_an_opening_text_can_be_answered_and_is_not_told() -> None:
    world = World(initial_user_text="greet the caller")
    assert _gap(world) == []
    assert "response.created" in types(world.send(CreateResponse()))
    added = pick(world.events, "conversation.item.added")[0]
    assert added["previous_item_id"] is None


# -- tools ------------------------------------------------------------------------------------------------


def called(**session: object) -> World:
    world = World(auto=True, **session)  # type: ignore[arg-type]
    world.say(240, loud=False)
    assert types(world.answer(ModelOutput(tool_calls=(ToolCall("look_up", '{"a": 1}', "call_1"),)))) == CALL
    return world


def test_a_result_is_an_item_once() -> None:
    world = called()
    assert error_codes(world.send(result("call_no"))) == ["invalid_function_call_output"]
    assert types(world.send(result())) == WHOLE
    world.say()
    world.send(Commit())
    (event,) = world.send(result())
    assert event["error"]["param"] == "item.output"


def test_a_call_that_the_client_wrote_takes_one_result_and_never_times_out() -> None:
    world = World()
    written = function_call_item("item_1", call_id="call_1", name="look_up", arguments="{}")
    assert error_codes(world.send(result())) == ["invalid_function_call_output"]
    assert types(world.send(CreateItem(item=written))) == WHOLE
    world.advance(61)
    world.send(CancelInput())
    retrieved = pick(world.send(RetrieveItem(item_id="item_1")), "conversation.item.retrieved")[0]
    assert retrieved["item"]["status"] == "completed"
    assert types(world.send(result())) == WHOLE
    (event,) = world.send(result())
    assert (event["error"]["code"], event["error"]["param"]) == ("invalid_function_call_output", "item.output")


@pytest.mark.parametrize("how", ["commit", "cancel", "time"])
def test_an_unanswered_call_is_settled(how: str) -> None:
    world = called()
    code = "late_function_call_output"
    if how == "commit":
        world.say()
        world.send(Commit())
    elif how == "cancel":
        world.send(CancelInput())
        code = "stale_function_call_output"
    else:
        world.advance(61)
    item_id = pick(world.events, "response.output_item.done")[0]["item"]["id"]
    retrieved = pick(world.send(RetrieveItem(item_id=item_id)), "conversation.item.retrieved")[0]
    assert retrieved["item"]["status"] == "incomplete"
    assert error_codes(world.send(result())) == [code]


def test_a_response_or_speech_of_the_model_settles_nothing() -> None:
    world = called()
    world.answer(spoken("by the way", end_of_turn=True))
    assert types(world.send(result())) == WHOLE


def test_a_malformed_call_is_passed_on_raw() -> None:
    world = World(auto=True)
    world.say()
    (event,) = world.answer(ModelOutput(tool_calls=(ToolCall(raw="<tool"),)))
    assert (event["type"], event["event"]["raw"]) == ("duplex.function_call.done", "<tool")


def test_in_the_openai_dialect_a_call_waits_for_the_open_response() -> None:
    world = World(auto=True, dialect=Dialect.openai, turn_detection=None)
    world.say(400, loud=False)
    world.answer(spoken("let me see"))
    assert world.answer(ModelOutput(tool_calls=(ToolCall("f", "{}", "c"),))) == []
    seen = types(world.answer(spoken("so", end_of_turn=True)))
    assert seen.index("response.done") < seen.index("response.created")


# -- updates ----------------------------------------------------------------------------------------------


def test_instructions_lock_with_the_first_unit_and_the_voice_with_the_first_sound() -> None:
    world = World(auto=True, voice="alto", instructions="One.")
    assert types(world.send(SessionUpdate(session={"instructions": "Two.", "voice": "bass"}))) == ["session.updated"]
    assert [effect.body for effect in world.effects if isinstance(effect, ControlStage)] == [b"Two."]
    world.say(40)
    assert types(world.send(SessionUpdate(session={"instructions": "Three."}))) == ["session.updated"]
    world.say(120)
    refused = world.send(SessionUpdate(session={"instructions": "Four.", "temperature": 0.9}))
    assert error_codes(refused) == ["instructions_update_unsupported"]
    told = world.send(SessionUpdate(session={"instructions": "Three."}))[0]["session"]
    assert (told["instructions"], told["temperature"]) == ("Three.", None)
    world.answer(spoken("hi"))
    assert error_codes(world.send(SessionUpdate(session={"voice": "tenor"}))) == [
        "voice_update_after_audio_unsupported"
    ]


def test_the_model_is_told_of_what_an_update_changed_and_of_no_refused_one() -> None:
    world = World(auto=True, voice="alto")
    tools = [{"type": "function", "name": "look_up"}]
    world.send(SessionUpdate(session={"tools": tools}))
    world.send(SessionUpdate(session={"tools": tools}))
    world.send(SessionUpdate(session={"tools": [], "model": "another"}))
    assert world.plugin.tools == [("look_up",)]


def test_a_model_that_does_not_lock_takes_new_instructions() -> None:
    world = World(FakeModel(locks_instructions=False), auto=True)
    world.say()
    assert types(world.send(SessionUpdate(session={"instructions": "Now."}))) == ["session.updated"]


def test_what_a_session_cannot_be_opened_with_keeps_its_code() -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        World(input_audio_format="mp3")
    assert refused.value.param
    with pytest.raises(RealtimeProtocolError):
        World(FakeModel(auto_only=True))


# -- signals and what is refused ----------------------------------------------------------------------------


def test_signals_move_the_turn_state_and_close_cleanly() -> None:
    world = World()
    assert world.send(TurnSignal(event="user_started"))[0]["turn_state"] == "user_speaking"
    assert world.send(TurnSignal(event="whatever"))[0]["turn_state"] == "user_speaking"
    assert types(world.send(TurnSignal(event="timeout"))) == ["session.closed"]


def test_what_is_not_served_is_refused_by_its_code() -> None:
    world = World()
    assert error_codes(world.send(AppendText(text="x"))) == ["native_text_append_unsupported"]
    resume = SessionResume(session_id="s", resume_token="t")
    assert error_codes(world.send(resume)) == ["unsupported_session_resume"]
