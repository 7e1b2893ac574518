"""What comes down: each event of an upstream server as a result for the session, and what is fenced."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from unit.models.bridge.talks import SOUND, Talk, kinds

from duologue.model.outputs import ModelOutput, TextMark, ToolCall, Usage

pytestmark = pytest.mark.unit


def opened(dialect: str = "duplex", **more: Any) -> Talk:
    talk = Talk(dialect, **more)
    talk.open()
    return talk


def test_sound_waits_for_its_words_and_marks_go_within_them() -> None:
    talk = opened()
    talk.create()
    talk.speak(text="good ", audio_text_marks=[{"text_chars": 5, "audio_end_ms": 80}])
    talk.speak(text="day", audio_text_marks=[{"text_chars": 8, "audio_end_ms": 160}])
    first, second = talk.told()
    assert first.pcm == second.pcm == SOUND
    assert first.output == ModelOutput(text="good ", audio_rate_hz=24_000, marks=(TextMark(5, 80.0),))
    assert second.output.marks == (TextMark(3, 80.0),)


def test_a_server_that_tells_its_own_rate_is_believed() -> None:
    talk = opened()
    talk.create()
    at = {"response_id": "r1", "delta": base64.b64encode(SOUND).decode(), "sample_rate_hz": 22_050}
    talk.say("response.output_audio.delta", **at)
    talk.say("response.output_audio_transcript.delta", response_id="r1", delta="")
    (output,) = talk.outputs()
    assert output.audio_rate_hz == 22_050


def test_of_a_foreign_openai_server_sound_and_words_go_on_as_they_come() -> None:
    talk = opened("openai", ours=False)
    talk.create()
    talk.say("response.output_audio_transcript.delta", response_id="r1", delta="good day")
    talk.say("response.output_audio.delta", response_id="r1", item_id="i", delta=base64.b64encode(SOUND).decode())
    assert talk.outputs() == [ModelOutput(text="good day"), ModelOutput(audio_rate_hz=24_000)]


def test_an_odd_byte_is_carried_to_the_next_sound() -> None:
    talk = opened("openai", ours=False)
    talk.create()
    for piece in (b"\1\0\2", b"\0\3\0"):
        talk.say("response.output_audio.delta", response_id="r1", delta=base64.b64encode(piece).decode())
    assert b"".join(told.pcm for told in talk.told()) == b"\1\0\2\0\3\0"


@pytest.mark.parametrize("name", ["response.output_text.delta", "response.text.delta"])
def test_text_alone_is_text(name: str) -> None:
    talk = opened()
    talk.create()
    talk.say(name, response_id="r1", delta="hello")
    assert talk.outputs() == [ModelOutput(text="hello")]


def test_the_end_brings_the_rest_and_what_was_counted() -> None:
    talk = opened()
    talk.create()
    talk.say("response.output_audio.delta", response_id="r1", delta=base64.b64encode(SOUND).decode())
    usage = {"input_token_details": {"audio_tokens": 9, "cached_tokens": 4}, "output_token_details": {"text_tokens": 3}}
    talk.done(usage=usage)
    sound, end = talk.outputs()
    assert sound.audio_rate_hz == 24_000
    counted = Usage(input_audio_tokens=9, cached_tokens=4, output_text_tokens=3)
    assert end == ModelOutput(end_of_turn=True, usage=counted)


def test_a_model_that_listens_by_itself_is_told() -> None:
    talk = opened()
    talk.say("response.listen", response={"metadata": {"reason": "buffering"}})
    assert talk.outputs() == [ModelOutput(listen=True, reason="buffering")]


def test_a_listen_that_names_no_response_does_not_end_the_one_that_was_asked_for() -> None:
    talk = opened(auto=False)
    talk.ask()
    talk.say("response.listen", response={"metadata": {"reason": "silence_or_noise"}})
    assert talk.told() == []
    talk.create()
    talk.say("response.listen", response_id="r1", response={"id": "r1", "metadata": {"reason": "model_listen"}})
    talk.done()
    assert talk.outputs() == [ModelOutput(listen=True)]


def test_in_the_openai_dialect_an_empty_answer_is_a_listen() -> None:
    talk = opened("openai", auto=False)
    talk.ask()
    talk.create()
    talk.done()
    assert talk.outputs() == [ModelOutput(listen=True)]


def test_the_openai_dialect_listens_to_what_goes_up_while_nothing_is_due() -> None:
    talk = opened("openai")
    assert talk.conversation.listens
    talk.create()
    assert not talk.conversation.listens
    assert not opened().conversation.listens


def test_a_call_is_told_and_its_response_ends_nothing() -> None:
    talk = opened()
    talk.create()
    talk.speak()
    talk.create("r2")
    item = {"type": "function_call", "name": "look_up", "arguments": '{"q": 1}', "call_id": "c1"}
    talk.say("response.output_item.done", response_id="r2", item=item)
    talk.done("r2")
    talk.speak(text="done")
    assert [output.tool_calls for output in talk.outputs()] == [(), (ToolCall("look_up", '{"q": 1}', "c1"),), ()]


def test_a_call_in_the_answer_that_was_asked_for_ends_it() -> None:
    talk = opened("openai", ours=False, auto=False)
    talk.ask()
    talk.create()
    item = {"type": "function_call", "name": "look_up", "arguments": "{}", "call_id": "c1"}
    talk.say("response.output_item.done", response_id="r1", item=item)
    talk.done()
    call, end = talk.outputs()
    assert call.tool_calls == (ToolCall("look_up", "{}", "c1"),)
    assert end == ModelOutput(end_of_turn=True)


def test_a_call_that_cannot_be_read_goes_on_as_it_was_written() -> None:
    talk = opened()
    talk.say("duplex.function_call.done", event={"raw": "look_up(("})
    assert talk.outputs() == [ModelOutput(tool_calls=(ToolCall(raw="look_up(("),))]


# -- cancels ----------------------------------------------------------------------------------------------


def test_nothing_of_a_cancelled_response_is_passed_on() -> None:
    talk = opened()
    talk.create()
    talk.speak()
    talk.told()
    talk.conversation.cancel()
    (cancel,) = talk.commands()
    assert (cancel["type"], cancel["response_id"]) == ("response.cancel", "r1")
    talk.speak(text="late")
    talk.done(status="cancelled")
    assert talk.told() == []
    assert talk.counted.stales == 3
    talk.create("r2")
    talk.speak("r2", text="fresh")
    assert [output.text for output in talk.outputs()] == ["fresh"]


def test_a_response_that_was_cancelled_before_it_came_to_be_is_cancelled_then() -> None:
    talk = opened(auto=False)
    talk.ask()
    talk.conversation.cancel()
    assert talk.commands() == []
    talk.create()
    assert kinds(talk.commands()) == ["response.cancel"]
    talk.speak(text="late")
    assert talk.told() == []


def test_a_cancel_that_came_too_late_for_the_server_is_no_error() -> None:
    talk = opened()
    talk.create()
    talk.conversation.cancel()
    (cancel,) = talk.commands()
    talk.error("response_not_active", event_id=cancel["event_id"])
    talk.error("response_cancel_not_active")
    assert talk.told() == []


def test_an_interruption_that_the_server_heard_interrupts_the_session() -> None:
    talk = opened(turn_detection={"type": "server_vad"})
    talk.create()
    talk.speak()
    talk.told()
    talk.say("input_audio_buffer.speech_started", audio_start_ms=900, item_id="i")
    talk.done(status="cancelled", status_details={"type": "cancelled", "reason": "turn_detected"})
    started, interrupt, end = talk.outputs()
    assert started.speech_started_ms == 900
    assert interrupt.interrupt == "turn_detected"
    assert end.end_of_turn


def test_turns_that_the_server_detects_are_the_sessions() -> None:
    talk = opened("openai", ours=False, turn_detection={"type": "semantic_vad"})
    talk.say("input_audio_buffer.speech_started", audio_start_ms=900, item_id="i")
    talk.say("input_audio_buffer.speech_stopped", audio_end_ms=1900, item_id="i")
    talk.say("conversation.item.input_audio_transcription.completed", item_id="i", transcript="hello there")
    started, stopped, turn = talk.outputs()
    assert (started.speech_started_ms, stopped.speech_stopped_ms) == (900, 1900)
    assert turn.user_turn is not None
    assert (turn.user_turn.transcript, turn.user_turn.answer) == ("hello there", False)


def test_turns_that_the_session_tells_itself_are_not_told_twice() -> None:
    talk = opened(auto=False)
    talk.say("input_audio_buffer.speech_started", audio_start_ms=0, item_id="i")
    talk.say("conversation.item.input_audio_transcription.completed", item_id="i", transcript="hello")
    assert talk.told() == []


# -- failures ---------------------------------------------------------------------------------------------


def test_an_error_is_told_with_the_end_of_the_response_that_it_is_of() -> None:
    talk = opened()
    talk.create()
    talk.error("thinker_timeout", "too slow")
    assert talk.told() == []
    talk.done(status="failed", status_details={"type": "failed", "reason": "runtime_append_failed"})
    assert talk.outputs() == [ModelOutput(error_code="thinker_timeout", error="too slow")]


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"type": "failed", "reason": "runtime_append_failed"}, "runtime_append_failed"),
        ({"type": "failed", "error": {"type": "server_error", "code": "engine_dead"}}, "upstream_failed"),
        (None, "upstream_failed"),
    ],
)
def test_a_failed_response_has_a_code_of_the_table(details: object, code: str) -> None:
    talk = opened()
    talk.create()
    talk.done(status="failed", status_details=details)
    (output,) = talk.outputs()
    assert output.error_code == code
    assert output.error


def test_a_refused_request_fails_the_answer_that_was_promised() -> None:
    talk = opened(auto=False)
    event_id = talk.ask()
    talk.error("insufficient_quota", "pay first", event_id=event_id)
    assert talk.outputs() == [ModelOutput(error_code="upstream_failed", error="insufficient_quota: pay first")]
    assert not talk.conversation.owes


def test_a_refused_request_that_was_cancelled_is_nobodys() -> None:
    talk = opened(auto=False)
    event_id = talk.ask()
    talk.conversation.cancel()
    talk.error("response_create_without_input", event_id=event_id)
    assert talk.told() == []
    assert not talk.conversation.owes


def test_a_refused_command_does_not_end_the_response_beside_it() -> None:
    talk = opened()
    talk.unit()
    (append,) = talk.commands()
    talk.create()
    talk.error("input_backpressure", event_id=append["event_id"])
    talk.speak()
    talk.done()
    assert not any(output.error_code for output in talk.outputs())
    assert talk.counted.errors == ["input_backpressure"]


def test_sound_that_cannot_be_read_fails_its_response_and_cancels_it() -> None:
    talk = opened()
    talk.create()
    talk.say("response.output_audio.delta", response_id="r1", delta="%%%")
    (output,) = talk.outputs()
    assert output.error_code == "upstream_failed"
    assert kinds(talk.commands()) == ["response.cancel"]
    talk.done(status="cancelled")
    assert talk.told() == []


def test_a_frame_that_is_no_event_is_counted_and_skipped() -> None:
    talk = opened()
    for frame in ("{", "[]", b"\xff"):
        talk.conversation.frame(frame)
    assert talk.counted.errors == ["invalid_json"] * 3


def test_an_answer_that_does_not_come_is_given_up() -> None:
    talk = opened(auto=False)
    talk.ask()
    talk.create()
    talk.conversation.quiet()
    (output,) = talk.outputs()
    assert output.error_code == "upstream_timeout"
    assert kinds(talk.commands()) == ["response.cancel"]
    assert not talk.conversation.owes


def test_quiet_is_no_fault_while_nothing_is_due() -> None:
    talk = opened()
    talk.conversation.quiet()
    assert talk.told() == []
    assert talk.conversation.is_live


def test_a_server_that_does_not_open_the_session_is_given_up() -> None:
    talk = Talk()
    talk.conversation.connected()
    talk.conversation.quiet()
    assert talk.conversation.failure is not None
    assert talk.conversation.failure[0] == "upstream_timeout"


def test_the_responses_that_are_known_are_bounded() -> None:
    talk = opened()
    for n in range(100):
        talk.create(f"r{n}")
    talk.conversation.cancel()
    assert len(talk.commands()) == 32
