"""What each dialect shows of every event, judged by the openai package's own models."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import msgspec
import pytest
from dialect_judge import BETA, BETA_NAMES, GA, complaint
from unit.protocol.event_samples import CREATED, ITEM, RID, SAMPLES, SCOPE, SID, SPOKEN, ended

from duologue.protocol import duplex as p
from duologue.protocol.duplex.projection import MAX_DELTA_BYTES, NOT_PROJECTED

pytestmark = pytest.mark.unit

VIEWS = {dialect: p.SessionView(SID, p.SessionConfig.provisional(dialect, model="loopback")) for dialect in p.Dialect}


BETA_ONLY = re.compile(r"response\.(audio|audio_transcript|text)\.(delta|done)|conversation\.item\.created")
GA_ONLY = re.compile(r"response\.output_(audio|audio_transcript|text)\.(delta|done)|conversation\.item\.(added|done)")


def shown(event: Any, dialect: p.Dialect) -> list[dict[str, Any]]:
    return [json.loads(body) for body in p.project(event, dialect, VIEWS[dialect])]


def one(event: Any, dialect: p.Dialect = p.Dialect.openai) -> dict[str, Any]:
    (told,) = shown(event, dialect)
    return told


@pytest.mark.parametrize(("event", "keys"), SAMPLES, ids=[event.type for event, _ in SAMPLES])
def test_duplex_shows_the_event_itself(event: Any, keys: list[str]) -> None:
    assert p.project(event, p.Dialect.duplex, VIEWS[p.Dialect.duplex]) == [p.render(event)]


@pytest.mark.parametrize(("event", "keys"), SAMPLES, ids=[event.type for event, _ in SAMPLES])
def test_openai_shows_valid_ga_events_only(event: Any, keys: list[str]) -> None:
    for told in shown(event, p.Dialect.openai):
        assert not BETA_ONLY.match(told["type"])
        assert told["event_id"].startswith(event.event_id)
        assert complaint(told, p.Dialect.openai) == ""


@pytest.mark.parametrize(("event", "keys"), SAMPLES, ids=[event.type for event, _ in SAMPLES])
def test_beta_shows_beta_names_only(event: Any, keys: list[str]) -> None:
    for told in shown(event, p.Dialect.openai_beta):
        assert not GA_ONLY.match(told["type"])
        assert '"output_audio"' not in json.dumps(told)
        if told["type"] in BETA and not told["type"].startswith("session."):  # its session is the GA sample
            BETA[told["type"]].model_validate(told)


VANISH = {
    p.Dialect.openai: """
        session.resumed session.replaced session.heartbeat_ack session.closed session.expiring
        session.going_away conversation.item.created response.speak response.listen overlap.decision
        playback.acknowledged
        turn.event duplex.function_call.done""",
    p.Dialect.openai_beta: """
        session.resumed session.replaced session.heartbeat_ack session.closed session.expiring
        session.going_away conversation.item.added conversation.item.done response.speak response.listen
        overlap.decision
        playback.acknowledged turn.event duplex.function_call.done""",
}


@pytest.mark.parametrize("dialect", VANISH)
def test_only_events_without_an_equivalent_vanish(dialect: p.Dialect) -> None:
    gone = {event.type for event, _ in SAMPLES if not shown(event, dialect)}
    assert gone == set(VANISH[dialect].split())
    never = {kind.__struct_config__.tag for kind in NOT_PROJECTED}
    assert never == gone - {"conversation.item.added", "conversation.item.created", "conversation.item.done"}


def test_beta_names_and_their_fields() -> None:
    for event, _ in SAMPLES:
        if event.type in BETA_NAMES and not event.type.startswith("conversation."):
            told, ga = one(event, p.Dialect.openai_beta), one(event)
            assert told.pop("type") == BETA_NAMES[event.type]
            assert ga.pop("type") == event.type
            assert told == ga


@pytest.mark.parametrize("dialect", [p.Dialect.openai, p.Dialect.openai_beta])
@pytest.mark.parametrize("status", ["cancelled", "failed", "incomplete", "completed"])
def test_an_item_has_a_status_that_stock_clients_know(dialect: p.Dialect, status: str) -> None:
    item = p.message_item("item_1", "assistant", status=status)
    event = p.OutputItemDone(event_id="event_1", response_id="resp_1", item=item)
    told = one(event, dialect)
    assert complaint(told, dialect) == ""
    assert told["item"]["status"] == ("completed" if status == "completed" else "incomplete")


# -- reasons, statuses, codes -----------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [p.Dialect.openai, p.Dialect.openai_beta])
@pytest.mark.parametrize(
    ("status", "reason", "details"),
    [
        ("cancelled", "barge_in", {"type": "cancelled", "reason": "turn_detected"}),
        ("cancelled", "turn_detected", {"type": "cancelled", "reason": "turn_detected"}),
        ("cancelled", "client_cancelled", {"type": "cancelled", "reason": "client_cancelled"}),
        ("cancelled", "output_audio_buffer_clear", {"type": "cancelled", "reason": "client_cancelled"}),
        ("cancelled", "session_closed", {"type": "cancelled", "reason": "client_cancelled"}),
        ("cancelled", "something_new", {"type": "cancelled", "reason": "client_cancelled"}),
        ("completed", "stop", None),
        ("incomplete", "max_output_tokens", {"type": "incomplete", "reason": "max_output_tokens"}),
        ("incomplete", "something_new", {"type": "incomplete"}),
        (
            "failed",
            "worker_lost",
            {"type": "failed", "error": {"type": "server_error", "code": "worker_lost"}},
        ),
    ],
)
def test_endings_are_told_in_words_that_ga_knows(
    dialect: p.Dialect, status: str, reason: str, details: dict[str, Any] | None
) -> None:
    item = SPOKEN.with_status(status if status != "failed" else "incomplete")
    told = one(p.ResponseDone(event_id="e", response=ended(status, reason, item), response_id=RID), dialect)
    assert told["response"]["status_details"] == details
    assert told["response"]["status"] == status
    assert told["response"]["output"][0]["status"] == ("completed" if status == "completed" else "incomplete")
    (GA if dialect is p.Dialect.openai else BETA)["response.done"].model_validate(told)


def test_a_response_has_the_fields_that_clients_need() -> None:
    told = one(p.ResponseCreated(event_id="e", response=CREATED, response_id=RID))["response"]
    assert told["metadata"] == {"client_event_id": "r1"}
    assert (told["output"], told["usage"], told["status_details"]) == ([], None, None)
    assert told["output_modalities"] == ["audio"]
    assert told["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    done = one(p.ResponseDone(event_id="e", response=ended("completed", "stop", SPOKEN), response_id=RID))
    assert done["response"]["usage"]["total_tokens"] == 0
    assert done["response"]["output"][0]["content"] == [{"type": "output_audio", "transcript": "hello there"}]


def test_an_item_of_the_beta_has_the_part_names_of_the_beta() -> None:
    item = p.assistant_item(RID, status="completed", transcript="a", text="b")
    told = one(p.ItemRetrieved(event_id="e", item=item), p.Dialect.openai_beta)["item"]
    assert told["content"] == [{"type": "audio", "transcript": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("code", "openai"),
    [
        ("response_already_active", "conversation_already_has_active_response"),
        ("response_not_active", "response_cancel_not_active"),
        ("item_not_found", "item_retrieve_invalid_item_id"),
        ("input_audio_buffer_empty", "input_audio_buffer_commit_empty"),
        ("item_create_duplicate_item_id", "item_create_duplicate_item_id"),
        ("model_not_found", "model_not_found"),
        ("a_plugin_code", "a_plugin_code"),
    ],
)
def test_codes_have_the_names_that_stock_clients_know(code: str, openai: str) -> None:
    event = p.error_event(p.RealtimeProtocolError(code, "no", event_id="evt_1"), "event_1")
    for dialect in (p.Dialect.openai, p.Dialect.openai_beta):
        error = one(event, dialect)["error"]
        assert (error["code"], error["event_id"]) == (openai, "evt_1")
    assert one(event, p.Dialect.duplex)["error"]["code"] == code


def test_expiry_and_a_gap_are_errors_there() -> None:
    expired = one(p.SessionExpired(event_id="e", session_id=SID, reason="max_session_expired"))
    assert (expired["type"], expired["event_id"], expired["error"]["code"]) == (
        "error",
        "e",
        "session_expired",
    )
    gap = one(p.SessionResyncRequired(event_id="e", session_id=SID, head_seq=12))["error"]
    assert (gap["code"], gap["head_seq"]) == ("session_resync_required", 12)


def test_nothing_is_shown_whose_required_field_is_null() -> None:
    assert shown(p.OutputCleared(event_id="e", response_id=None), p.Dialect.openai) == []
    assert one(p.OutputCleared(event_id="e", response_id=None), p.Dialect.duplex)["response_id"] is None


def test_a_transcription_always_tells_its_usage() -> None:
    event = p.TranscriptionCompleted(event_id="e", item_id="i", transcript="hi")
    assert one(event)["usage"] == {"type": "duration", "seconds": 0.0}
    assert "usage" not in one(event, p.Dialect.duplex)


def test_created_keeps_its_token_and_head() -> None:
    event = p.SessionCreated(event_id="e", server_event_seq=0, session={}, resume_token="t")
    assert one(event)["resume_token"] == "t"
    assert one(event)["server_event_seq"] == 0


# -- long audio -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [p.Dialect.openai, p.Dialect.openai_beta])
@pytest.mark.parametrize("size", [2, MAX_DELTA_BYTES, MAX_DELTA_BYTES + 2, 3 * MAX_DELTA_BYTES + 4])
def test_long_audio_becomes_several_deltas(dialect: p.Dialect, size: int) -> None:
    audio = bytes(range(256)) * (size // 256) + bytes(size % 256)
    event = p.AudioDelta(event_id="event_1", delta=audio, **SCOPE)
    bodies = p.project(event, dialect, VIEWS[dialect])
    deltas = [json.loads(body) for body in bodies]
    assert b"".join(base64.b64decode(delta["delta"]) for delta in deltas) == audio
    assert max(map(len, bodies)) < 700 * 1024
    assert len({delta["event_id"] for delta in deltas}) == len(deltas) == -(-size // MAX_DELTA_BYTES)
    assert {delta["item_id"] for delta in deltas} == {ITEM}


def test_duplex_does_not_cut() -> None:
    event = p.AudioDelta(event_id="e", delta=bytes(2 * MAX_DELTA_BYTES), **SCOPE)
    assert len(p.project(event, p.Dialect.duplex, VIEWS[p.Dialect.duplex])) == 1


def test_an_empty_delta_is_still_a_delta() -> None:
    assert one(p.AudioDelta(event_id="e", delta=b"", **SCOPE))["delta"] == ""


def test_the_same_event_gives_the_same_bytes() -> None:
    for event, _ in SAMPLES:
        again = msgspec.structs.replace(event)
        for dialect, view in VIEWS.items():
            assert p.project(event, dialect, view) == p.project(again, dialect, view)


# -- which dialect ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "query", "headers", "dialect"),
    [
        ("/v1/realtime", {}, {}, "openai"),
        ("/v1/realtime", {"duplex": "1"}, {}, "duplex"),
        ("/v1/realtime", {"duplex": "TRUE"}, {}, "duplex"),
        ("/v1/realtime", {"duplex": "on"}, {"openai-beta": "realtime=v1"}, "duplex"),
        ("/v1/realtime", {"duplex": "0"}, {}, "openai"),
        ("/v1/realtime", {"duplex": "yes"}, {}, "openai"),
        ("/v1/realtime", {}, {"OpenAI-Beta": "realtime=v1"}, "openai-beta"),
        ("/v1/realtime", {"duplex": "0"}, {"openai-beta": "assistants=v2, realtime=v1"}, "openai-beta"),
        ("/v1/realtime", {}, {"openai-beta": "assistants=v2"}, "openai"),
        ("/v1/duplex", {}, {}, "duplex"),
        ("/v1/duplex", {"duplex": "0"}, {"OpenAI-Beta": "realtime=v1"}, "duplex"),
    ],
)
def test_the_dialect_is_chosen_by_path_query_and_header(
    path: str, query: dict[str, str], headers: dict[str, str], dialect: str
) -> None:
    assert p.Dialect.choose(path, query, headers).value == dialect
