"""What a client remembers to come back."""

from __future__ import annotations

import pytest

from duologue.client.cursor import ResumeCursor

pytestmark = pytest.mark.unit


def cursor_with(*ids: str, keep_bytes: int = 1000) -> ResumeCursor:
    cursor = ResumeCursor(keep_bytes)
    for event_id in ids:
        cursor.sent(event_id, "input_audio_buffer.append", f"frame {event_id}")
    return cursor


def test_an_event_is_new_once() -> None:
    cursor = ResumeCursor()
    assert [cursor.is_new(seq) for seq in (1, 2, 2, 1, None, 3)] == [True, True, False, False, True, True]
    assert cursor.last_seq == 3


def test_the_claim_names_session_token_and_cursor() -> None:
    cursor = ResumeCursor()
    cursor.learn("duplex-1", "token-1")
    cursor.learn("duplex-1", "token-2")
    cursor.is_new(7)
    assert cursor.claim() == {
        "type": "session.resume",
        "session_id": "duplex-1",
        "resume_token": "token-2",
        "last_received_server_event_seq": 7,
    }


def test_what_came_after_the_last_held_command_is_sent_again() -> None:
    cursor = cursor_with("a", "b", "c", "d")
    assert cursor.to_resend("b") == ["frame c", "frame d"]
    assert cursor.to_resend("c") == ["frame d"]
    assert cursor.to_resend("d") == []


def test_a_server_that_holds_nothing_gets_everything() -> None:
    assert cursor_with("a", "b").to_resend(None) == ["frame a", "frame b"]


def test_heartbeats_are_named_but_never_sent_again() -> None:
    cursor = cursor_with("a")
    cursor.sent("h", "session.heartbeat", "heartbeat")
    cursor.sent("b", "input_audio_buffer.commit", "commit")
    assert cursor.to_resend("a") == ["commit"]
    assert cursor_with("a").to_resend("a") == []


def test_the_name_of_another_client_resends_nothing() -> None:
    assert cursor_with("a", "b").to_resend("somebody-elses") == []


def test_the_kept_commands_are_bounded_and_what_is_left_follows_the_given_up() -> None:
    cursor = cursor_with(*(f"{n:03}" for n in range(200)), keep_bytes=500)
    assert cursor.given_up > 0
    assert cursor.to_resend("000")[-1] == "frame 199"
    assert sum(map(len, cursor.to_resend("000"))) <= 500


def test_after_a_gap_the_session_is_claimed_from_the_servers_head() -> None:
    cursor = ResumeCursor()
    cursor.learn("duplex-1", "token")
    cursor.is_new(3)
    cursor.skip_to(40)
    assert cursor.resumable and cursor.claim()["last_received_server_event_seq"] == 40
    cursor.skip_to(7)
    assert cursor.last_seq == 40
