"""What goes up: the opening, units, turns, items, cancels, updates, and in which order."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from unit.models.bridge.talks import UNIT, Talk, kinds

from duologue.models.bridge import heads
from duologue.models.bridge.heads import UnitHead

pytestmark = pytest.mark.unit


def test_the_duplex_opening_says_what_the_session_is() -> None:
    tools = ({"type": "function", "name": "f"},)
    extra: dict[str, Any] = {"loopback": {"script": []}}
    session = Talk(model="m", instructions="be kind", tools=tools, extra_body=extra, output_rate_hz=22_050).open()
    assert session["model"] == "m"
    assert session["instructions"] == "be kind"
    assert session["tools"] == list(tools)
    assert session["extra_body"] == {"loopback": {"script": []}, "auto_response": True}
    assert session["turn_detection"] is None
    assert (session["sample_rate_hz"], session["audio"]["output"]["sample_rate_hz"]) == (16_000, 22_050)
    assert "voice" not in session


@pytest.mark.parametrize(("ours", "extra"), [(True, {"k": 1, "auto_response": True}), (False, {"k": 1})])
def test_the_openai_opening_waits_for_the_greeting_and_knows_its_own_kind(ours: bool, extra: object) -> None:
    talk = Talk("openai", ours=ours, voice="marin", extra_body={"k": 1}, turn_detection={"type": "server_vad"})
    talk.conversation.connected()
    assert talk.commands() == []
    session = talk.open()
    assert session["type"] == "realtime"
    assert session["output_modalities"] == ["audio"]
    assert session["audio"]["input"] == {
        "format": {"type": "audio/pcm", "rate": 24_000},
        "turn_detection": {"type": "server_vad"},
    }
    assert session["audio"]["output"]["voice"] == "marin"
    assert session["extra_body"] == extra


def test_a_foreign_openai_server_is_sent_no_word_that_it_does_not_know() -> None:
    assert set(Talk("openai", ours=False).open()) == {"type", "output_modalities", "audio"}


@pytest.mark.parametrize("dialect", ["duplex", "openai"])
def test_an_opening_text_is_the_first_that_is_said(dialect: str) -> None:
    talk = Talk(dialect, initial_user_text="hello")
    talk.unit()
    session = talk.open()
    sent = kinds(talk.commands())
    if dialect == "duplex":
        assert session["initial_user_text"] == "hello"
        assert sent == ["input_audio_buffer.append"]
    else:
        assert "initial_user_text" not in session
        assert sent == ["conversation.item.create", "input_audio_buffer.append"]


def test_what_comes_before_the_session_is_live_waits_for_it() -> None:
    talk = Talk()
    talk.conversation.connected()
    assert kinds(talk.commands()) == ["session.update"]
    talk.unit()
    assert talk.conversation.pending_bytes > len(UNIT)
    assert talk.commands() == []
    talk.say("session.created", session={"id": "s"})
    talk.say("session.updated", session={})
    assert kinds(talk.commands()) == ["input_audio_buffer.append"]
    assert talk.conversation.pending_bytes == 0


def test_a_unit_goes_up_with_what_the_session_knows_of_it() -> None:
    talk = Talk(video=True)
    talk.open()
    talk.unit(heads.AUTO | heads.KNOWN | heads.SPEECH | heads.FORCE_LISTEN, UNIT, b"\xff\xd8jpeg")
    (append,) = talk.commands()
    assert base64.b64decode(append["audio"]) == UNIT
    assert (append["format"], append["sample_rate_hz"]) == ("pcm16", 16_000)
    assert append["is_speech"] is append["force_listen"] is True
    assert base64.b64decode(append["video_frames"][0]) == b"\xff\xd8jpeg"


def test_silence_that_the_session_made_goes_nowhere() -> None:
    talk = Talk()
    talk.open()
    talk.unit(heads.AUTO | heads.CONTINUATION)
    assert talk.commands() == []


def test_a_turn_is_committed_and_answered_once() -> None:
    talk = Talk(auto=False)
    talk.open()
    talk.unit(0)
    talk.unit(heads.FINAL | heads.ASK)
    expected = ["input_audio_buffer.append"] * 2 + ["input_audio_buffer.commit", "response.create"]
    assert kinds(talk.commands()) == expected


def test_a_turn_without_sound_is_asked_for_with_the_first_silence() -> None:
    talk = Talk(auto=False)
    talk.open()
    talk.conversation.item(UnitHead(item={"type": "message", "role": "user"}))
    talk.unit(heads.CONTINUATION | heads.ASK)
    assert kinds(talk.commands()) == ["conversation.item.create", "response.create"]


def test_a_commit_of_an_auto_session_goes_before_the_unit_that_follows_it() -> None:
    talk = Talk()
    talk.open()
    talk.unit(heads.AUTO | heads.COMMIT)
    assert kinds(talk.commands()) == ["input_audio_buffer.commit", "input_audio_buffer.append"]


def test_a_turn_waits_until_nothing_is_due_upstream() -> None:
    talk = Talk(auto=False)
    talk.open()
    talk.ask()
    talk.create()
    talk.conversation.cancel()
    assert kinds(talk.commands()) == ["response.cancel"]
    talk.unit(heads.FINAL | heads.ASK)
    assert talk.commands() == []
    assert talk.conversation.pending_bytes > len(UNIT)
    talk.done(status="cancelled")
    assert kinds(talk.commands()) == ["input_audio_buffer.append", "input_audio_buffer.commit", "response.create"]


def test_a_held_turn_that_is_cancelled_goes_nowhere_and_its_items_do() -> None:
    talk = Talk(auto=False)
    talk.open()
    talk.ask()
    talk.create()
    talk.conversation.cancel()
    talk.conversation.item(UnitHead(item={"type": "message"}))
    talk.unit(heads.FINAL | heads.ASK)
    talk.conversation.cancel()
    talk.commands()
    talk.done(status="cancelled")
    assert kinds(talk.commands()) == ["conversation.item.create"]


def test_sound_of_a_turn_that_was_cancelled_halfway_is_cleared() -> None:
    talk = Talk(auto=False)
    talk.open()
    talk.unit(0)
    talk.conversation.cancel()
    assert kinds(talk.commands()) == ["input_audio_buffer.append", "input_audio_buffer.clear"]


def test_sound_of_an_auto_session_never_waits() -> None:
    talk = Talk()
    talk.open()
    talk.create()
    talk.unit()
    assert kinds(talk.commands()) == ["input_audio_buffer.append"]


@pytest.mark.parametrize(
    ("dialect", "ours", "duplex_client", "asks"),
    [("openai", False, True, True), ("openai", False, False, False), ("openai", True, True, False)]
    + [("duplex", True, True, False)],
)
def test_somebody_asks_for_the_answer_to_a_result(dialect: str, ours: bool, duplex_client: bool, asks: bool) -> None:
    talk = Talk(dialect, ours=ours, speaks_duplex=duplex_client)
    talk.open()
    item = {"type": "function_call_output", "call_id": "c", "output": "{}"}
    talk.conversation.item(UnitHead(item=item, answers=True))
    created, *more = talk.commands()
    assert created["item"] == item
    assert kinds(more) == (["response.create"] if asks else [])


def test_an_update_says_what_changed() -> None:
    talk = Talk(instructions="a", temperature=0.5)
    talk.open()
    changed: dict[str, Any] = {"instructions": "b", "temperature": None}
    talk.conversation.update(type(talk.config)(modalities=("text", "audio"), auto=True, speaks_duplex=True, **changed))
    (update,) = talk.commands()
    assert update["session"] == changed


def test_an_update_without_a_change_says_nothing() -> None:
    talk = Talk()
    talk.open()
    talk.conversation.update(talk.config)
    assert talk.commands() == []


@pytest.mark.parametrize("dialect", ["duplex", "openai"])
def test_what_was_heard_cuts_the_upstream_answer(dialect: str) -> None:
    talk = Talk(dialect, ours=dialect == "duplex")
    talk.open()
    talk.create()
    talk.speak()
    talk.speak()
    talk.conversation.heard(100)
    talk.conversation.cancel()
    sent = talk.commands()
    if dialect == "duplex":
        assert kinds(sent) == ["playback.ack", "response.cancel"]
        assert sent[0]["played_ms"] == 100
    else:
        assert kinds(sent) == ["response.cancel", "conversation.item.truncate"]
        assert (sent[1]["item_id"], sent[1]["audio_end_ms"]) == ("item_r1", 100)


def test_an_answer_that_is_over_is_acknowledged_and_may_be_cut_later() -> None:
    talk = Talk()
    talk.open()
    talk.create()
    talk.speak()
    talk.done()
    (ack,) = talk.commands()
    assert (ack["type"], ack["response_id"], ack["played_ms"]) == ("playback.ack", "r1", 80)
    talk.conversation.heard(30)
    (cut,) = talk.commands()
    assert (cut["type"], cut["item_id"], cut["audio_end_ms"]) == ("conversation.item.truncate", "item_r1", 30)
    talk.conversation.heard(80)
    assert talk.commands() == []


def test_numbered_events_are_acknowledged_now_and_then_and_taken_once() -> None:
    talk = Talk()
    talk.open()
    for seq in range(1, 41):
        talk.say("response.listen", server_event_seq=seq, response={"metadata": {"reason": "model_listen"}})
    talk.say("response.listen", server_event_seq=40, response={})
    assert len(talk.told()) == 40
    (ack,) = talk.commands()
    assert (ack["type"], ack["server_event_seq"]) == ("session.event_ack", 32)


def test_a_resume_claims_the_session_and_sends_again_what_was_lost() -> None:
    talk = Talk()
    talk.open()
    talk.unit()
    talk.unit()
    first, second = talk.commands()
    talk.say("response.listen", server_event_seq=7, response={})
    assert talk.conversation.resumable
    talk.conversation.disconnected()
    talk.unit()
    assert talk.commands() == []
    talk.conversation.connected()
    (claim,) = talk.commands()
    assert claim == {
        "type": "session.resume",
        "session_id": "upstream-1",
        "resume_token": "token-1",
        "last_received_server_event_seq": 7,
    }
    talk.say("session.resumed", resume_token="token-2", last_client_event_id=first["event_id"])
    again, third = talk.commands()
    assert again == second
    assert third["type"] == "input_audio_buffer.append"
    talk.conversation.disconnected()
    talk.conversation.connected()
    assert talk.commands()[0]["resume_token"] == "token-2"


def test_the_openai_dialect_is_not_resumed() -> None:
    talk = Talk("openai")
    talk.open()
    assert not talk.conversation.resumable


@pytest.mark.parametrize("kind", ["session.closed", "session.expired", "session.resync_required"])
def test_a_session_that_is_ended_upstream_is_over(kind: str) -> None:
    talk = Talk()
    talk.open()
    talk.say(kind, reason="idle_ttl_expired")
    assert talk.conversation.failure == ("upstream_lost", "the upstream server ended the session: idle_ttl_expired")


def test_a_refused_opening_keeps_a_code_that_is_known_here() -> None:
    talk = Talk()
    talk.conversation.connected()
    talk.error("model_not_found", "no model 'm'")
    assert talk.conversation.failure == ("model_not_found", "no model 'm'")


def test_a_session_says_farewell_in_the_duplex_dialect_only() -> None:
    for dialect, words in (("duplex", 1), ("openai", 0)):
        talk = Talk(dialect)
        talk.open()
        assert len(talk.conversation.farewell()) == words


def test_a_heartbeat_is_for_the_duplex_dialect() -> None:
    for dialect, expected in (("duplex", ["session.heartbeat"]), ("openai", [])):
        talk = Talk(dialect)
        talk.open()
        talk.conversation.alive()
        assert kinds(talk.commands()) == expected
