"""The conversation of one socket, frame by frame."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duologue.gateway.connection import (
    Acknowledge,
    Connection,
    End,
    Forward,
    Open,
    Resume,
    State,
    Tell,
)
from duologue.gateway.handshake import Offer
from duologue.protocol.duplex import Dialect, SessionHeartbeat

pytestmark = pytest.mark.unit


def connection(dialect: Dialect = Dialect.duplex, **offer: Any) -> Connection:
    return Connection(Offer(path="/v1/realtime", dialect=dialect, **offer))


def frame(type_: str, **fields: Any) -> str:
    return json.dumps({"type": type_, **fields})


def code(step: object) -> str:
    assert isinstance(step, Tell | End)
    found: str = json.loads(step.payload)["error"]["code"]
    return found


def attached(dialect: Dialect = Dialect.duplex) -> Connection:
    made = connection(dialect)
    made.attached()
    return made


def test_an_update_opens_with_its_session() -> None:
    made = connection()
    step = made.receive(frame("session.update", event_id="u", session={"model": "m"}), 0)
    assert step == Open({"model": "m"}, "u")
    assert made.state is State.opening


def test_the_whole_payload_is_the_session_where_there_is_no_object() -> None:
    assert connection().receive(frame("session.update", model="m"), 0) == Open({"model": "m"}, None)


def test_any_other_command_opens_a_default_session_and_follows() -> None:
    made = connection()
    step = made.receive(frame("session.heartbeat"), 0)
    assert step == Open({}, None, False, SessionHeartbeat())
    assert made.carry_on(SessionHeartbeat()) == Forward(SessionHeartbeat())


def test_a_resume_names_session_token_and_cursor() -> None:
    made = connection(resume_only=True)
    step = made.receive(
        frame("session.resume", session_id="s", resume_token="t", last_received_server_event_seq=3, event_id="r"), 0
    )
    assert step == Resume("s", "t", 3, "r")
    assert made.state is State.resuming


@pytest.mark.parametrize(
    ("offer", "type_"),
    [
        ({"resume_only": True}, "session.update"),
        ({"resume_only": True, "no_autostart": True}, "session.update"),
        ({"no_autostart": True}, "session.heartbeat"),
    ],
    ids=str,
)
@pytest.mark.parametrize("dialect", [Dialect.duplex, Dialect.openai])
def test_the_query_forbids_other_first_messages(offer: dict[str, Any], type_: str, dialect: Dialect) -> None:
    made = connection(dialect, **offer)
    step = made.receive(frame(type_, event_id="e"), 0)
    assert isinstance(step, End)
    assert (step.close_code, made.state) == (1008, State.closing)
    assert json.loads(step.payload)["error"]["event_id"] == "e"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("{", "invalid_json"),
        ("[]", "bad_event"),
        (b"x", "bad_event"),
        (frame("zzz"), "unknown_event"),
        (frame("session.resume", session_id=5), "invalid_session_resume"),
    ],
)
def test_a_wrong_first_message_ends_a_duplex_socket(first: str | bytes, expected: str) -> None:
    step = connection().receive(first, 0)
    assert isinstance(step, End)
    assert (code(step), step.close_code) == (expected, 1008)


def test_a_provisional_session_survives_a_wrong_message() -> None:
    made = connection(Dialect.openai)
    assert isinstance(made.receive("{", 0), Tell)
    assert made.state is State.provisional
    assert isinstance(made.receive(frame("session.update", session={}), 0), Open)
    made.open_refused(final=False)
    assert made.state.name == "provisional"
    made.open_refused(final=True)
    assert made.state.name == "closing"


def test_what_is_not_ours_is_forwarded() -> None:
    made = attached()
    assert made.receive(frame("session.heartbeat"), 0) == Forward(SessionHeartbeat())
    assert made.receive(frame("session.event_ack", server_event_seq=3), 0) == Acknowledge(3, None)


@pytest.mark.parametrize("seq", [True, -1, 1.5, "1", None])
def test_an_ack_is_a_natural_number(seq: object) -> None:
    step = attached().receive(frame("session.event_ack", server_event_seq=seq), 0)
    assert code(step) == "invalid_event_ack"


@pytest.mark.parametrize("made", [attached(), connection(Dialect.openai)], ids=["attached", "provisional"])
def test_a_resume_that_comes_late_is_refused(made: Connection) -> None:
    step = made.receive(frame("session.resume", session_id="s", resume_token="t"), 0)
    assert isinstance(step, Tell)
    assert code(step) == "unsupported_session_resume"


def test_fifty_undecodable_frames_in_ten_seconds_end_the_socket() -> None:
    made = attached()
    assert all(isinstance(made.receive("{", n * 0.1), Tell) for n in range(49))
    step = made.receive(b"x", 9.99)
    assert isinstance(step, End)
    assert (step.close_code, step.undecodable) == (1008, "bad_event")


def test_undecodable_frames_are_forgotten_and_others_do_not_count() -> None:
    made = attached()
    assert all(isinstance(made.receive("{", n * 0.21), Tell) for n in range(200))
    assert all(isinstance(made.receive(frame("zzz"), 100), Tell) for _ in range(200))


def test_a_silent_socket_is_sent_away_in_the_words_of_its_dialect() -> None:
    step = connection().timed_out(10)
    assert (code(step), step.close_code) == ("config_timeout", 1008)
    step = connection(Dialect.openai).timed_out(300)
    assert (code(step), step.close_code) == ("session_expired", 1000)


QUERY = {"resume_session": "s", "resume_token": "t", "last_seq": "7"}


def test_a_query_resumes_before_the_first_message() -> None:
    made = connection(Dialect.openai, resume=QUERY)
    assert made.begin() == Resume("s", "t", 7)
    assert connection(Dialect.openai).begin() is None


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"resume_session": ""}, "resume_session"),
        ({"resume_token": ""}, "resume_token"),
        ({"last_seq": ""}, "last_seq"),
        ({"last_seq": "-1"}, "last_seq"),
        ({"last_seq": "1.0"}, "last_seq"),
        ({"last_seq": "\u0663"}, "last_seq"),
        ({"last_seq": "9" * 30}, "last_seq"),
    ],
    ids=str,
)
def test_half_a_resume_is_refused_by_name(change: dict[str, str], param: str) -> None:
    step = connection(Dialect.openai, resume={**QUERY, **change}).begin()
    assert isinstance(step, End)
    assert code(step) == "invalid_session_resume"
    assert json.loads(step.payload)["error"]["param"] == param


def test_errors_speak_the_dialect() -> None:
    assert json.loads(attached(Dialect.openai).error("item_not_found", "no"))["error"]["code"] == (
        "item_retrieve_invalid_item_id"
    )
    assert json.loads(attached().error("item_not_found", "no"))["error"]["code"] == "item_not_found"
