"""Every server event: its keys and their order, what is left out, and the way back."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

import msgspec
import pytest
from msgspec import UNSET
from unit.protocol.event_samples import AUDIO, RID, SAMPLES, SCOPE, SID

from duologue.protocol import duplex as p

pytestmark = pytest.mark.unit

IDS = [event.type for event, _ in SAMPLES]

CONTRACT = """
session.created session.updated session.resumed session.replaced session.resync_required session.heartbeat_ack
session.closed session.expired input_audio_buffer.speech_started input_audio_buffer.speech_stopped
input_audio_buffer.committed input_audio_buffer.cleared conversation.item.added conversation.item.created
conversation.item.done conversation.item.retrieved conversation.item.deleted conversation.item.truncated
conversation.item.input_audio_transcription.completed response.created response.output_item.added
response.content_part.added response.speak response.output_audio.delta response.output_audio_transcript.delta
response.output_text.delta response.output_text.done response.output_audio.done
response.output_audio_transcript.done response.content_part.done response.output_item.done response.done
rate_limits.updated response.function_call_arguments.delta response.function_call_arguments.done
response.listen output_audio_buffer.cleared
overlap.decision playback.acknowledged turn.event error duplex.function_call.done
session.expiring session.going_away
""".split()


def test_all_44_types_of_the_contract_have_a_class_and_a_sample() -> None:
    assert sorted(CONTRACT) == sorted(IDS)
    assert {type(event) for event, _ in SAMPLES} == set(get_args(p.DuplexEvent))


@pytest.mark.parametrize(("event", "keys"), SAMPLES, ids=IDS)
def test_an_event_is_rendered_in_wire_order(event: Any, keys: list[str]) -> None:
    body = p.render(event)
    told = json.loads(body)
    assert list(told) == ["type", "event_id", *keys]
    assert (told["type"], told["event_id"]) == (event.type, event.event_id)
    assert body == json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()
    assert event.to_realtime() == told


@pytest.mark.parametrize(("event", "keys"), SAMPLES, ids=IDS)
def test_an_event_comes_back_equal(event: Any, keys: list[str]) -> None:
    assert p.event_from_realtime(p.render(event)) == event
    assert p.event_from_realtime(p.render(event).decode()) == event
    assert p.event_from_realtime(event.to_realtime()) == event


@pytest.mark.parametrize(("event", "keys"), SAMPLES, ids=IDS)
def test_keys_that_are_not_set_are_left_out(event: Any, keys: list[str]) -> None:
    required = {
        field.name: getattr(event, field.name) for field in msgspec.structs.fields(type(event)) if field.required
    }
    told = json.loads(p.render(type(event)(**required)))
    defaults = {
        field.name for field in msgspec.structs.fields(type(event)) if not field.required and field.default is not UNSET
    }
    assert set(told) == {"type", *required, *defaults}


def test_the_number_is_the_last_key() -> None:
    for event, keys in SAMPLES:
        told = json.loads(p.splice_seq(p.render(event), 4711))
        assert list(told) == ["type", "event_id", *keys, "server_event_seq"]
        read = p.event_from_realtime(p.splice_seq(p.render(event), 4711))
        assert read.server_event_seq == 4711


def test_audio_is_base64_of_its_bytes() -> None:
    event = p.AudioDelta(event_id="e", delta=bytes(range(256)), **SCOPE)
    told = json.loads(p.render(event))
    assert base64.b64decode(told["delta"], validate=True) == bytes(range(256))
    assert told["format"] == "pcm16"


def test_an_unknown_type_is_kept_raw() -> None:
    raw = {"type": "response.sing", "event_id": "e", "key": "c", "server_event_seq": 3}
    assert p.event_from_realtime(raw) == p.UnknownEvent(type="response.sing", raw=raw, event_id="e", server_event_seq=3)
    odd = p.event_from_realtime(b'{"type": "x", "event_id": 5, "server_event_seq": "z"}')
    assert (odd.event_id, odd.server_event_seq) == ("", UNSET)


@pytest.mark.parametrize("kind", IDS)
def test_missing_fields_are_tolerated(kind: str) -> None:
    read = p.event_from_realtime({"type": kind})
    assert read.type == kind
    assert json.loads(p.render(read))["type"] == kind


def test_a_wrong_field_does_not_spoil_the_others() -> None:
    read = p.event_from_realtime({"type": "turn.event", "session_id": SID, "event": 5, "epoch": "x"})
    assert read == p.TurnEvent(event_id="", session_id=SID, event="", turn_state="", epoch=0)
    delta = p.event_from_realtime({"type": "response.output_audio.delta", "response_id": RID, "delta": "AAAA"})
    assert isinstance(delta, p.AudioDelta)
    assert (delta.response_id, delta.delta, delta.metadata) == (RID, b"\0\0\0", UNSET)


@pytest.mark.parametrize("raw", [b"[]", b"5", b'{"event_id": "e"}', b'{"type": 5}', b"{nonsense"])
def test_what_is_no_event_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        p.event_from_realtime(raw)


def test_a_tier_2_event_is_its_tier_1_twin_with_more_keys() -> None:
    from duologue.protocol.realtime import events as tier1

    for kind in get_args(p.DuplexEvent):
        twin = getattr(tier1, kind.__name__, None)
        if twin is not None:
            assert issubclass(kind, twin)
            assert kind.__struct_config__.tag == twin.__struct_config__.tag
            assert set(twin.__struct_fields__) <= set(kind.__struct_fields__)


def test_an_error_event_says_what_the_refusal_says() -> None:
    refusal = p.RealtimeProtocolError("bad_event", "no", param="x", event_id="evt_1")
    error = json.loads(p.render(p.error_event(refusal, "event_1")))["error"]
    assert error == {
        "type": "invalid_request_error",
        "code": "bad_event",
        "message": "no",
        "event_id": "evt_1",
        "param": "x",
        "retryable": False,
    }
    busy = p.RealtimeProtocolError("input_backpressure", "later", retry_after_ms=250)
    error = json.loads(p.render(p.error_event(busy, "event_2", head_seq=9)))["error"]
    assert (error["retryable"], error["retry_after_ms"], error["head_seq"]) == (True, 250, 9)


def test_metadata_keys_stand_in_their_order() -> None:
    told = json.loads(msgspec.json.encode(AUDIO))
    assert list(told) == [
        *("session_id", "epoch", "model_speak", "end_of_turn", "playback", "vllm_omni"),
        *("audio_duration_ms", "audio_text_marks"),
    ]
