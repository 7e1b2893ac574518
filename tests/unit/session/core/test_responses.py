"""The life of a response: opening, deltas, tail, listen, continuation, text."""

from __future__ import annotations

import pytest
from unit.session.core.fake_models import FakeModel
from unit.session.core.session_world import World, error_codes, pick, spoken, types

from duologue.model.outputs import ModelOutput, TextMark
from duologue.protocol.duplex import (
    Commit,
    ContentPart,
    CreateItem,
    CreateResponse,
    Dialect,
    ResponseOptions,
    message_item,
)

pytestmark = pytest.mark.unit

OPENING = [
    "response.created",
    "conversation.item.added",
    "conversation.item.created",
    "response.output_item.added",
    "response.content_part.added",
]
UNIT = ["response.output_audio.delta", "response.output_audio_transcript.delta"]
SHORT_TAIL = [
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
    "rate_limits.updated",
]
TAIL = ["response.output_audio.done", "response.output_audio_transcript.done", *SHORT_TAIL]


def asked(units: int = 2, **session: object) -> World:
    world = World(**session)  # type: ignore[arg-type]
    world.say(80 * units)
    world.send(Commit(response_create=True))
    return world


def typed(text: str) -> CreateItem:
    return CreateItem(item=message_item("", "user", ContentPart(type="input_text", text=text)))


def test_a_promised_response_is_spoken_in_the_documented_order() -> None:
    world = asked()
    assert types(world.events)[-5:] == OPENING
    assert types(world.answer(spoken("one "))) == ["response.speak", *UNIT]
    seen = world.answer(spoken("two", end_of_turn=True))
    assert types(seen) == [*UNIT, *TAIL]
    done = pick(seen, "response.done")[0]["response"]
    assert done["status_details"] == {"type": "completed", "reason": "stop"}
    assert done["output"][0]["content"][0]["transcript"] == "one two"


def test_an_auto_session_opens_by_itself() -> None:
    world = World(auto=True)
    world.say()
    assert types(world.answer(spoken("hi", end_of_turn=True))) == [*OPENING, "response.speak", *UNIT, *TAIL]


def test_ids_follow_from_session_and_epoch() -> None:
    world = asked()
    created = pick(world.events, "response.created")[0]
    assert created["response_id"].startswith(f"resp-duplex-{'0' * 32}-0-")
    added = pick(world.events, "response.output_item.added")[0]
    assert added["item"]["id"] == f"item_{created['response_id']}"


def test_marks_and_cursors_are_cumulative() -> None:
    world = asked()
    first = ModelOutput(text="ab", audio_rate_hz=24_000, marks=(TextMark(1, 40.0), TextMark(2, 80.0)))
    world.answer(first)
    seen = world.answer(ModelOutput(text="cd", audio_rate_hz=24_000, end_of_turn=True))
    metadata = pick(seen, "response.output_audio.delta")[0]["metadata"]
    assert metadata["playback"]["generated_ms"] == 160
    part = pick(seen, "response.done")[0]["response"]["output"][0]["content"][0]
    assert [(mark["text_chars"], mark["audio_end_ms"]) for mark in part["audio_text_marks"]] == [
        (1, 40),
        (2, 80),
        (4, 160),
    ]


def test_a_listen_ends_what_was_promised_and_its_leftovers_mean_nothing() -> None:
    world = asked(3)
    seen = world.answer(ModelOutput(listen=True))
    assert types(seen) == ["response.listen", *SHORT_TAIL]
    assert seen[0]["response_id"] == pick(world.events, "response.created")[0]["response_id"]
    assert world.answer(spoken("late")) == []


def test_a_pause_keeps_a_response_open() -> None:
    world = World(auto=True)
    for _ in range(3):
        world.say()
    world.answer(spoken("to be "))
    assert world.answer(ModelOutput(listen=True)) == []
    assert "response.created" not in types(world.answer(spoken("or not", end_of_turn=True)))


def test_each_listened_unit_is_told_once() -> None:
    world = World(auto=True)
    world.say(240)
    told = [event for _ in range(3) for event in world.answer(ModelOutput(listen=True))]
    assert types(told) == ["response.listen"] * 3
    assert all("response_id" not in event and event["epoch"] == 0 for event in told)


def test_silence_completes_a_turn_at_the_pace_of_units() -> None:
    world = asked(1)
    world.answer(spoken("a "))
    world.advance(0.079)
    assert len(world.submits) == 1
    world.advance(0.3)
    assert [head.continuation for head in world.heads()] == [False, True, True, True, True]
    assert pick(world.answer(spoken("b", end_of_turn=True)), "response.done")
    world.advance(1)
    assert len(world.submits) == 5


def test_real_input_resets_the_continuation() -> None:
    world = World(auto=True)
    world.say()
    world.answer(spoken("a"))
    for _ in range(5):
        world.advance(0.08)
        world.say()
        world.answer(spoken("a"))
    assert not any(head.continuation for head in world.heads())


def test_the_continuation_limit_ends_the_response() -> None:
    world = World(FakeModel(continuation_turn=2))
    world.say()
    world.send(Commit(response_create=True))
    world.answer(spoken("a"))
    for _ in range(2):
        world.advance(0.1)
        world.answer(spoken("a"))
    seen = world.advance(0.2)
    assert types(seen)[0] == "response.listen"
    assert seen[0]["response"]["metadata"]["reason"] == "continuation_limit"
    assert pick(seen, "response.done")[0]["response"]["status_details"] is None


def test_a_second_create_is_refused_and_a_create_without_input_too() -> None:
    world = World()
    assert error_codes(world.send(CreateResponse())) == ["response_create_without_input"]
    world = asked()
    assert error_codes(world.send(CreateResponse(event_id="r"))) == ["response_already_active"]


def test_a_typed_turn_lives_on_continuation_alone() -> None:
    world = World()
    world.send(typed("hello"))
    assert types(world.send(CreateResponse())) == OPENING
    world.advance(0.01)
    assert [head.continuation for head in world.heads()] == [True]
    assert types(world.answer(spoken("hi", end_of_turn=True)))[-2:] == ["response.done", "rate_limits.updated"]


def test_a_model_without_text_turns_refuses_them() -> None:
    model = FakeModel()
    model.text_turns = False
    world = World(model)
    world.send(typed("hello"))
    assert error_codes(world.send(CreateResponse())) == ["text_only_turn_unsupported"]


def test_text_only_sessions_get_text_events_and_no_audio() -> None:
    world = World(modalities=["text"], auto=True)
    world.say()
    seen = world.answer(spoken("hi", end_of_turn=True))
    assert "response.output_text.delta" in types(seen)
    assert not [name for name in types(seen) if "audio" in name]
    assert pick(seen, "response.done")[0]["response"]["output"][0]["content"][0] == {
        "type": "output_text",
        "text": "hi",
    }


def test_options_of_one_response() -> None:
    world = World()
    world.say(160)
    world.send(Commit())
    options = ResponseOptions(metadata={"k": "v"}, modalities=("text",))
    created = world.send(CreateResponse(options=options))[0]
    assert created["response"]["metadata"]["k"] == "v"
    assert created["response"]["modalities"] == ["text"]


def test_output_is_converted_to_the_session_format_in_full() -> None:
    import base64

    world = World(auto=True, output_audio_format={"type": "pcm16", "rate": 16_000})
    for _ in range(3):
        world.say()
    seen = [*world.answer(spoken()), *world.answer(spoken()), *world.answer(spoken(end_of_turn=True))]
    deltas = pick(seen, "response.output_audio.delta")
    assert {(delta["format"], delta["sample_rate_hz"]) for delta in deltas} == {("pcm16", 16_000)}
    assert len(deltas) == 3
    assert sum(len(base64.b64decode(delta["delta"])) for delta in deltas) == 3 * 80 * 16 * 2


def test_the_openai_dialect_has_its_own_names_and_nothing_else() -> None:
    world = World(dialect=Dialect.openai, auto=True, turn_detection=None)
    world.say(160, loud=False)
    seen = world.answer(spoken("hi", end_of_turn=True))
    assert "response.speak" not in types(seen)
    assert "conversation.item.created" not in types(seen)
    assert pick(seen, "response.done")[0]["response"]["status"] == "completed"
