"""Function calls on the cascade: a real session, a real thinker and voice, a language model that is scripted."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from unit.models.cascade.calling import (
    CLOCK,
    USAGE,
    WEATHER,
    Brain,
    Conversation,
    call,
    calls,
    end,
    part,
    responses,
    spoken_text,
    words,
)
from unit.models.cascade.harness import Engines
from unit.session.core.session_world import error_codes, pick, types

from duologue.protocol.duplex import CancelResponse, Dialect, ResponseOptions, SessionUpdate

pytestmark = pytest.mark.cascade


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Brain, Engines]]:
    with Brain() as brain:
        engines = Engines(stages=(2, 3), thinker={"url": brain.url, "model": "m", "timeout_s": 1.0})
        yield brain, engines
        engines.close()


@pytest.fixture
def brain(served: tuple[Brain, Engines]) -> Brain:
    brain, _ = served
    brain.asked.clear()
    brain.script.clear()
    brain.left.clear()
    return brain


@pytest.fixture
def engines(served: tuple[Brain, Engines]) -> Engines:
    return served[1]


def talking(engines: Engines, **session: Any) -> Conversation:
    return Conversation(engines, tools=[WEATHER, CLOCK], **session)


def test_a_call_is_told_and_its_result_answered(brain: Brain, engines: Engines) -> None:
    brain.script += [call(0, "weather", '{"ci', 'ty": "Paris"}') + end("tool_calls"), words("It is ", "sunny.") + end()]
    talk = talking(engines)
    seen = talk.ask("What is the weather in Paris?")
    assert calls(seen) == [("weather", {"city": "Paris"})]
    assert [tool["function"]["name"] for tool in brain.asked[0]["tools"]] == ["weather", "clock"]
    assert brain.asked[0]["tools"][0]["function"]["parameters"] == WEATHER["parameters"]
    assert "tool_choice" not in brain.asked[0]
    before = len(talk.events)
    talk.result("call_weather", '{"sky": "blue"}')
    talk.wait()
    assert spoken_text(talk.events[before:]) == "It is sunny."
    assert [(m["role"], m["content"]) for m in brain.asked[1]["messages"][1:]] == [
        ("user", "What is the weather in Paris?"),
        ("assistant", None),
        ("tool", '{"sky": "blue"}'),
    ]
    assert brain.asked[1]["messages"][2]["tool_calls"][0]["id"] == brain.asked[1]["messages"][3]["tool_call_id"]
    assert [r["status"] for r in responses(talk.events)] == ["completed"] * 3
    talk.close()


def test_words_before_a_call_are_spoken(brain: Brain, engines: Engines) -> None:
    brain.script.append(words("Let me look. ") + call(0, "clock") + end("tool_calls"))
    talk = talking(engines)
    seen = talk.ask("What time is it?")
    assert spoken_text(seen) == "Let me look."
    assert calls(seen) == [("clock", {})]
    brain.script.append(words("Noon.") + end())
    talk.result("call_clock", "12:00")
    talk.wait()
    assistant = [m for m in brain.asked[1]["messages"] if m["role"] == "assistant"]
    assert [(m["content"], len(m["tool_calls"])) for m in assistant] == [("Let me look.", 1)]
    talk.close()


@pytest.mark.parametrize("numbered", [True, False], ids=["indices", "no indices"])
def test_too_02_parallel_calls_are_answered_once(brain: Brain, engines: Engines, numbered: bool) -> None:
    first = [part(0 if numbered else None, '{"city": "Rome"}', name="weather", id="a")]
    second = [part(1 if numbered else None, name="weather", id="b"), part(1 if numbered else None, '{"city": "Oslo"}')]
    brain.script += [first + second + end("tool_calls"), words("Both are fine.") + end()]
    talk = talking(engines)
    assert [arguments["city"] for _, arguments in calls(talk.ask("Compare."))] == ["Rome", "Oslo"]
    talk.result("b", "rain")
    talk.wait()
    assert len(brain.asked) == 1, "the other result is still to come"
    talk.result("a", "sun")
    talk.wait()
    assert len(brain.asked) == 2
    messages = brain.asked[1]["messages"]
    assert [call["id"] for call in messages[-3]["tool_calls"]] == ["a", "b"]
    assert [(m["tool_call_id"], m["content"]) for m in messages[-2:]] == [("a", "sun"), ("b", "rain")]
    talk.close()


@pytest.mark.parametrize(
    "bad",
    [
        call(0, "weather", '{"city": '),
        call(0, "weather", "[1]"),
        call(0, "weather", '{"x": NaN}'),
        call(0, "nonsense", "{}"),
        [part(0, "{}")],
    ],
    ids=["cut off", "no object", "no JSON", "unknown function", "no name"],
)
def test_a_malformed_call_is_a_coded_failure_and_the_session_goes_on(
    brain: Brain, engines: Engines, bad: list[Any]
) -> None:
    brain.script += [bad + end("tool_calls"), words("Here I am.") + end()]
    talk = talking(engines)
    seen = talk.ask("Go on.")
    assert calls(seen) == []
    assert isinstance(pick(seen, "duplex.function_call.done")[0]["event"]["raw"], str)
    assert error_codes(seen) == ["malformed_function_call"]
    assert responses(seen)[-1]["status"] == "failed"
    assert spoken_text(talk.ask("Are you there?")) == "Here I am."
    talk.close()


def test_a_good_call_beside_a_malformed_one_is_told(brain: Brain, engines: Engines) -> None:
    brain.script.append(call(0, "clock", "") + call(1, "weather", "{") + end("tool_calls"))
    talk = talking(engines)
    seen = talk.ask("Go on.")
    assert calls(seen) == [("clock", {})]
    assert error_codes(seen) == ["malformed_function_call"]
    talk.close()


def test_a_server_that_never_stops_calling_is_cut_off(brain: Brain, engines: Engines) -> None:
    brain.script.append(call(0, "weather", *["x" * 8000] * 20) + end("tool_calls"))
    talk = talking(engines)
    seen = talk.ask("Go on.")
    assert (calls(seen), responses(seen)[-1]["status"]) == ([], "failed")
    talk.close()


def test_too_01_an_unanswered_call_wedges_nothing(brain: Brain, engines: Engines) -> None:
    brain.script += [call(0, "clock", id="c1") + end("tool_calls"), words("Never mind.") + end()]
    talk = talking(engines)
    talk.ask("What time is it?")
    assert spoken_text(talk.ask("Say something else.")) == "Never mind."
    assert brain.asked[1]["messages"][-2]["role"] == "tool", "every call has a result, as strict servers demand"
    talk.close()


def test_a_result_after_the_timeout_is_late(brain: Brain, engines: Engines) -> None:
    brain.script.append(call(0, "clock", id="c1") + end("tool_calls"))
    talk = talking(engines)
    talk.ask("What time is it?")
    talk.advance(61)
    assert error_codes(talk.result("c1", "12:00")) == ["late_function_call_output"]
    talk.wait()
    assert len(brain.asked) == 1
    talk.close()


def test_a_result_after_a_cancel_is_stale(brain: Brain, engines: Engines) -> None:
    brain.script.append(words("Let me see. ") + call(0, "clock", id="c1") + end("tool_calls"))
    talk = talking(engines)
    talk.write("What time is it?")
    talk.send_create()
    talk.until("response.function_call_arguments.done")
    talk.send(CancelResponse())
    assert error_codes(talk.result("c1", "12:00")) == ["stale_function_call_output"]
    talk.close()


def test_a_second_result_is_refused(brain: Brain, engines: Engines) -> None:
    brain.script += [call(0, "clock", id="c1") + end("tool_calls"), words("Noon.") + end()]
    talk = talking(engines)
    talk.ask("What time is it?")
    talk.result("c1", "12:00")
    assert error_codes(talk.result("c1", "13:00")) == ["invalid_function_call_output"]
    talk.wait()
    assert brain.asked[1]["messages"][-1]["content"] == "12:00"
    talk.close()


def test_a_result_does_not_interrupt_speech(brain: Brain, engines: Engines) -> None:
    long = "This is a long sentence that takes a good while to be spoken to its end. " * 3
    brain.script += [words(long) + call(0, "clock", id="c1") + end("tool_calls"), words("Noon.") + end()]
    talk = talking(engines)
    talk.write("What time is it?")
    talk.send_create()
    talk.until("response.function_call_arguments.done")
    talk.result("c1", "12:00")
    talk.wait()
    first, *_, last = [r for r in responses(talk.events) if r["output"][0]["type"] == "message"]
    assert (first["status"], last["status"]) == ("completed", "completed")
    assert spoken_text(talk.events) == f"{long.strip()}Noon."
    talk.close()


def test_a_cancel_closes_the_stream(brain: Brain, engines: Engines) -> None:
    brain.script += [[*call(0, "weather", '{"city'), None], words("Yes?") + end()]
    talk = talking(engines)
    talk.write("Go on.")
    talk.send_create()
    while not brain.asked:
        engines.called.wait(0.01)
    talk.send(CancelResponse())
    assert brain.left.wait(20)
    talk.wait()
    assert calls(talk.events) == []
    assert spoken_text(talk.ask("Still there?")) == "Yes?"
    talk.close()


def test_a_stream_that_falls_silent_or_breaks_off_is_coded(brain: Brain, engines: Engines) -> None:
    brain.script += [[*call(0, "weather", '{"city"'), "cut"], 503, 400]
    talk = talking(engines)
    told = [error_codes(talk.ask("Go on.")) for _ in range(3)]
    assert told == [["thinker_failed"], ["thinker_unavailable"], ["thinker_failed"]]
    assert [r["status"] for r in responses(talk.events)] == ["failed"] * 3
    talk.close()


def test_in_the_openai_dialect_the_client_asks_for_the_answer(brain: Brain, engines: Engines) -> None:
    brain.script += [words("Well. ") + call(0, "clock", id="c1") + end("tool_calls"), words("Noon.") + end()]
    talk = talking(engines, dialect=Dialect.openai, turn_detection=None)
    seen = talk.ask("What time is it?")
    created = [at for at, kind in enumerate(types(seen)) if kind == "response.created"]
    done = [at for at, kind in enumerate(types(seen)) if kind == "response.done"]
    assert created[0] < done[0] < created[1] < done[1], "one response at a time"
    talk.result("c1", "12:00")
    talk.wait()
    assert len(brain.asked) == 1
    talk.send_create()
    talk.wait()
    assert spoken_text(talk.events).endswith("Noon.")
    talk.close()


def test_tool_choice_goes_along_and_an_update_holds_from_the_next_answer(brain: Brain, engines: Engines) -> None:
    brain.script += [call(0, "clock", id="c1") + end("tool_calls"), words("Noon.") + end(), words("Hm.") + end()]
    talk = talking(engines, tool_choice={"type": "function", "name": "clock"})
    talk.ask("What time is it?")
    assert brain.asked[0]["tool_choice"] == {"type": "function", "function": {"name": "clock"}}
    talk.result("c1", "12:00")
    talk.wait()
    assert brain.asked[1]["tool_choice"] == "auto", "an answer to a result that must call would never end"
    talk.send(SessionUpdate(session={"tools": [], "tool_choice": None, "temperature": 0.5}))
    talk.ask("And now?")
    assert "tools" not in brain.asked[2]
    assert brain.asked[2]["temperature"] == 0.5
    talk.close()


def test_a_response_may_have_tools_of_its_own(brain: Brain, engines: Engines) -> None:
    brain.script.append(call(0, "clock", id="c1") + end("tool_calls"))
    talk = Conversation(engines)
    talk.ask("What time is it?", options=ResponseOptions(tools=(CLOCK,), tool_choice="required"))
    assert calls(talk.events) == [("clock", {})]
    assert brain.asked[0]["tool_choice"] == "required"
    talk.close()


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "unsupported", "tools[0].type"),
        ({"tools": [WEATHER, {"type": "function", "name": "no good"}]}, "bad_event", "tools[1].name"),
        ({"tools": [WEATHER, WEATHER]}, "bad_event", "tools[1].name"),
        ({"tools": [{**CLOCK, "parameters": []}]}, "bad_event", "tools[0].parameters"),
        ({"tool_choice": "perhaps"}, "bad_event", "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "gone"}}, "bad_event", "tool_choice.name"),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(
    brain: Brain, engines: Engines, session: dict[str, Any], code: str, param: str
) -> None:
    talk = talking(engines)
    (error,) = pick(talk.send(SessionUpdate(session=session)), "error")
    assert (error["error"]["code"], error["error"]["param"]) == (code, param)
    talk.close()


def test_the_capability_follows_the_configuration() -> None:
    from unit.models.cascade.test_plugin import pipeline

    from duologue.models.cascade.plugin import Cascade

    def told(**thinker: Any) -> tuple[bool, bool]:
        capabilities = Cascade(pipeline(thinker=thinker)).capabilities(8)
        return capabilities.supports_function_calls, capabilities.supports_image_input

    url = {"url": "http://h/v1", "model": "m"}
    assert told() == (False, False)
    assert told(**url) == (True, False)
    assert told(**url, tools=False, vision=True) == (False, True)


def test_usage_is_asked_for(brain: Brain, engines: Engines) -> None:
    brain.script.append(words("Yes.") + end(usage=USAGE))
    talk = talking(engines)
    (done,) = responses(talk.ask("Hm?"))
    assert brain.asked[0]["stream_options"] == {"include_usage": True}
    assert done["usage"] == {
        "total_tokens": 27,
        "input_tokens": 20,
        "output_tokens": 7,
        "input_token_details": {"text_tokens": 20, "audio_tokens": 0, "cached_tokens": 4},
        "output_token_details": {"text_tokens": 7, "audio_tokens": 0},
    }
    talk.close()


def test_an_update_of_the_speed_is_heard_from_the_next_answer(brain: Brain, engines: Engines) -> None:
    brain.script += [words("Well, here I am, and I have a lot to say.") + end()] * 3
    talk = talking(engines)

    def length_ms(speed: float | None) -> int:
        talk.send(SessionUpdate(session={"speed": speed}))
        (done,) = responses(talk.ask("Go on."))
        return int(done["output"][0]["content"][0]["audio_duration_ms"])

    own, fast, slow = length_ms(None), length_ms(1.5), length_ms(0.5)
    assert own / 1.7 < fast < own / 1.3
    assert own * 1.7 < slow < own * 2.3
    talk.close()


def test_a_server_at_a_url_may_end_after_enough_was_said_and_counts(brain: Brain, engines: Engines) -> None:
    brain.script.append(words("One. ", "Two. ", "Three. ", "Four. ") + end())
    talk = talking(engines)
    seen = talk.ask("Count.")
    assert spoken_text(seen) == "One. Two. Three."
    assert responses(seen)[0]["usage"]["total_tokens"] == 27
    talk.close()


def test_a_call_without_words_counts_for_the_response_that_asked(brain: Brain, engines: Engines) -> None:
    brain.script.append(call(0, "clock") + end("tool_calls"))
    talk = talking(engines)
    seen = talk.ask("What time is it?")
    assert [done.get("usage", {}).get("total_tokens") for done in responses(seen)] == [None, 27]
    talk.close()


def test_images_go_on_to_a_model_that_sees() -> None:
    png = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + bytes(60)).decode()
    with Brain() as brain:
        eyes = Engines(stages=(2, 3), thinker={"url": brain.url, "model": "m", "vision": True})
        brain.script += [words("A cat.") + end(), words("Yes.") + end()]
        talk = Conversation(eyes)
        assert spoken_text(talk.ask("What is this?", png)) == "A cat."
        talk.ask("Sure?")
        shown = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": png}}]
        assert [asked["messages"][1]["content"] for asked in brain.asked] == [shown, shown]
        talk.close()
        eyes.close()


def test_a_model_that_sees_nothing_refuses_images(brain: Brain, engines: Engines) -> None:
    talk = talking(engines)
    seen = talk.write("Look", "data:image/png;base64,iVBORw0KGgo=")
    assert error_codes(seen) == ["unsupported"]
    talk.close()
