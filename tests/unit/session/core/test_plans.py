"""A model that plans: it hears on while it speaks, tells turns, and answers conversations."""

from __future__ import annotations

import pytest
from unit.session.core.fake_models import planning
from unit.session.core.session_world import World, error_codes, pick, spoken, types
from unit.session.core.test_conversation import text
from unit.session.core.test_responses import OPENING

from duologue.model.outputs import ModelOutput, UserTurn
from duologue.protocol.duplex import AckPlayback, CancelResponse, Commit, CreateResponse

pytestmark = pytest.mark.unit

STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"
TURN = [
    STOPPED,
    "conversation.item.added",
    "conversation.item.created",
    "input_audio_buffer.committed",
    "conversation.item.input_audio_transcription.completed",
    "conversation.item.done",
]


def heard(words: str, answer: bool = True) -> ModelOutput:
    return ModelOutput(speech_stopped_ms=80, user_turn=UserTurn(words, 0, 80, answer=answer))


def conversing() -> World:
    """The model has been asked something and answers."""
    world = World(planning(), auto=True)
    world.say()
    assert types(world.answer(ModelOutput(speech_started_ms=0))) == [STARTED]
    world.say()
    seen = world.answer(heard("what time is it"))
    assert types(seen) == [*TURN, *OPENING]
    return world


def test_a_user_turn_is_committed_and_answered_from_the_conversation() -> None:
    world = conversing()
    assert world.heads()[-1].said == (("user", "what time is it"),)
    assert world.submits[-1].stage == 1 and world.submits[-1].urgent
    world.answer(spoken("it is noon "), last=False)
    seen = world.answer(spoken("now", end_of_turn=True))
    assert pick(seen, "response.done")[0]["response"]["status"] == "completed"


def test_it_hears_while_it_speaks_and_an_interruption_keeps_the_input() -> None:
    world = conversing()
    world.answer(spoken("it is noon"), last=False)
    plan = world.waiting.pop(0)
    world.say(160)
    assert len(world.waiting) == 2
    world.waiting.append(plan)
    world.now += 0.04
    seen = world.answer(ModelOutput(speech_started_ms=160, interrupt="turn_detected"))
    assert types(seen)[:2] == [STARTED, "overlap.decision"]
    done = pick(seen, "response.done")[0]["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert len(world.waiting) == 1, "the sound that no stage had read is heard again"


def test_history_holds_what_was_heard() -> None:
    world = conversing()
    world.answer(spoken("one two three four"), last=False)
    world.send(AckPlayback(played_ms=40))
    world.say()
    world.waiting.reverse()
    world.answer(ModelOutput(speech_started_ms=160, interrupt="turn_detected"))
    world.say()
    world.answer(heard("stop"))
    assert world.heads()[-1].said == (("user", "what time is it"), ("assistant", "one two t"), ("user", "stop"))


def test_what_nobody_heard_is_not_in_the_history() -> None:
    world = conversing()
    world.answer(spoken("one two three four"), last=False)
    world.send(CancelResponse())
    world.say()
    world.answer(heard("again"))
    assert world.heads()[-1].said == (("user", "what time is it"), ("user", "again"))


def test_a_back_channel_is_an_item_and_no_answer() -> None:
    world = conversing()
    world.say()
    world.waiting.reverse()
    seen = world.answer(heard("mm-hm", answer=False))
    assert "input_audio_buffer.committed" in types(seen)
    assert "response.created" not in types(seen)
    assert not pick(world.events, "response.done")


def test_a_turn_that_ends_during_a_response_is_answered_after_it() -> None:
    world = conversing()
    world.say()
    world.waiting.reverse()
    assert "response.created" not in types(world.answer(heard("and the date")))
    seen = world.answer(spoken("noon", end_of_turn=True))
    assert types(seen)[-5:] == OPENING
    assert [words for _, words in world.heads()[-1].said][:2] == ["what time is it", "and the date"]


def test_the_client_commits_and_the_transcript_comes_after() -> None:
    world = World(planning())
    world.say(160)
    seen = world.send(Commit(response_create=True))
    assert "conversation.item.input_audio_transcription.completed" not in types(seen)
    assert types(seen)[-5:] == OPENING
    item_id = pick(seen, "input_audio_buffer.committed")[0]["item_id"]
    assert [head.final for head in world.heads()] == [False, True]
    world.answer()
    told = world.answer(ModelOutput(user_turn=UserTurn("hello")))
    assert [(event["item_id"], event["transcript"]) for event in told] == [(item_id, "hello")]
    assert world.heads()[-1].said == (("user", "hello"),)


def test_a_commit_without_a_wish_is_answered_on_request() -> None:
    world = World(planning())
    world.say()
    world.send(Commit())
    world.answer(ModelOutput(user_turn=UserTurn("hello")))
    assert types(world.send(CreateResponse())) == OPENING
    assert world.heads()[-1].kind == "response"


def test_an_empty_turn_ends_what_was_promised() -> None:
    world = World(planning())
    world.say()
    world.send(Commit(response_create=True))
    seen = world.answer(ModelOutput(user_turn=UserTurn("")))
    assert types(seen)[1] == "response.listen"
    assert pick(seen, "response.done")[0]["response"]["status"] == "completed"


def test_a_typed_turn_needs_no_sound() -> None:
    from duologue.protocol.duplex import CreateItem

    world = World(planning(), instructions="Be brief.")
    world.send(CreateItem(item=text("hello")))
    world.send(CreateResponse())
    assert (world.heads()[-1].said, world.heads()[-1].instructions) == ((("user", "hello"),), "Be brief.")


def test_a_media_gap_is_filled_with_silence_up_to_a_bound() -> None:
    world = World(planning(), auto=True)
    world.say()
    world.answer(ModelOutput(speech_started_ms=0))
    world.advance(1.0)
    assert sum(head.continuation for head in world.heads()) >= 5
    world.advance(60)
    assert sum(head.continuation for head in world.heads()) == 64
    world.say()
    while world.waiting:
        world.answer()
    world.advance(1.0)
    assert sum(head.continuation for head in world.heads()) > 64, "real input makes room again"
    quiet = World(planning(), auto=True)
    quiet.say(loud=False)
    quiet.answer(ModelOutput())
    quiet.advance(5)
    assert len(quiet.submits) == 1


def test_interrupt_response_false_is_honoured() -> None:
    world = World(planning(), auto=True, turn_detection={"type": "server_vad", "interrupt_response": False})
    world.say()
    world.answer(heard("hello"))
    world.answer(spoken("hi"), last=False)
    world.say()
    world.waiting.reverse()
    assert not pick(world.answer(ModelOutput(interrupt="turn_detected")), "response.done")


def test_create_response_false_only_commits() -> None:
    world = World(planning(), auto=True, turn_detection={"type": "server_vad", "create_response": False})
    world.say()
    assert "response.created" not in types(world.answer(heard("hello")))
    assert "response.created" in types(world.send(CreateResponse()))


def test_an_error_of_the_model_is_told_with_its_code() -> None:
    world = World(planning(), auto=True)
    world.say()
    assert error_codes(world.answer(ModelOutput(error_code="recognition_overloaded", error="late"))) == [
        "recognition_overloaded"
    ]


@pytest.mark.parametrize(("code", "again"), [("recognition_overloaded", True), ("runtime_append_failed", False)])
def test_an_error_of_the_model_says_whether_it_may_be_tried_again(code: str, again: bool) -> None:
    world = World(planning(), auto=True)
    world.say()
    [told] = pick(world.answer(ModelOutput(error_code=code)), "error")
    assert told["error"]["retryable"] is again


def test_trouble_with_the_input_leaves_the_answer_alone() -> None:
    world = conversing()
    world.answer(spoken("it is noon "), last=False)
    plan = world.waiting.pop(0)
    world.say()
    world.waiting.append(plan)
    seen = world.answer(ModelOutput(error_code="recognition_overloaded"), heard("and the date"))
    assert error_codes(seen) == ["recognition_overloaded"]
    assert "conversation.item.input_audio_transcription.completed" in types(seen)
    assert "response.done" not in types(seen)
