"""The echo of the whole session, in each dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.beta.realtime import Session as BetaSession
from openai.types.realtime import RealtimeSessionCreateRequest

from duologue.protocol import duplex as p

pytestmark = pytest.mark.unit

VIEW = p.SessionRuntimeView(
    id="duplex-1",
    turn_state="user_speaking",
    epoch=2,
    turn_id=3,
    active_response_id="r",
    expires_at=1_900_000_000,
)
VAD = {"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 400, "prefix_padding_ms": 200}
LIFETIME = {"expires_at", "idle_timeout_s", "max_session_s", "disconnect_grace_s", "overflow_policy"}
CONTRACT = set(
    """id state turn_state epoch turn_id active_request_id active_response_id active_response_turn_id model
    modalities instructions voice response_format temperature max_tokens speed idle_timeout_s overlap_policy
    overlap_short_ack_ms overlap_barge_in_ms overlap_silence_rms playback_commit_policy playback capabilities
    object type input_audio_format output_audio_format output_modalities audio turn_detection
    input_audio_transcription tracing""".split()
)


def opened(dialect: p.Dialect = p.Dialect.duplex, **session: Any) -> p.SessionConfig:
    return p.SessionConfig.open(session, dialect=dialect, model="loopback")


def told(config: p.SessionConfig) -> dict[str, Any]:
    """As it is on the wire."""
    session: dict[str, Any] = json.loads(json.dumps(p.session_object(config, VIEW, config.dialect)))
    return session


def test_duplex_tells_every_key_of_the_contract() -> None:
    session = told(opened())
    assert session.keys() >= CONTRACT | LIFETIME
    assert (session["object"], session["type"], session["id"]) == ("realtime.session", "realtime", "duplex-1")
    assert (session["turn_state"], session["epoch"], session["turn_id"]) == ("user_speaking", 2, 3)
    assert session["playback"] == {"generated_ms": 0, "sent_ms": 0, "played_ms": 0, "committed_ms": 0}
    assert session["response_format"] == "pcm"
    assert session["audio"]["input"] == {"format": "pcm16", "sample_rate_hz": 16_000}
    assert "extra_body" not in session


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("voice", "alto"), ("temperature", 0.3), ("speed", 1.25), ("instructions", "Hm."), ("tools", [])),
        *(("tool_choice", "none"), ("metadata", {"who": "me"}), ("overlap_short_ack_ms", 250)),
        *(("overlap_silence_rms", 0.01), ("modalities", ["audio", "text"]), ("foo", {"a": [1]})),
        *(("prompt", {"id": "p"}), ("include", ["x"]), ("input_audio_transcription", {"model": "w"})),
    ],
)
def test_one_changed_leaf_is_echoed_and_leaves_the_rest_alone(key: str, value: Any) -> None:
    config = opened(instructions="Start.", metadata={"a": "b"})
    before, after = told(config), told(config.updated({key: value}))
    assert after[key] == value
    same = before.keys() - {key, "output_modalities", "audio"}
    assert {k: after.get(k) for k in same} == {k: before[k] for k in same}


def test_turn_detection_is_echoed_whole() -> None:
    detection = told(opened(turn_detection=VAD))["turn_detection"]
    assert {key: detection[key] for key in VAD} == VAD
    assert detection["create_response"] is detection["interrupt_response"] is True
    semantic = told(opened(turn_detection={"type": "semantic_vad", "eagerness": "low"}))["turn_detection"]
    assert semantic == {
        "type": "semantic_vad",
        "eagerness": "low",
        "create_response": True,
        "interrupt_response": True,
    }


def test_a_reference_voice_is_echoed_by_url_only() -> None:
    assert told(opened(ref_audio="https://x/y.wav"))["ref_audio"] == "https://x/y.wav"
    assert "ref_audio" not in told(opened(ref_audio="data:audio/wav;base64," + "A" * 9000))


def test_an_unknown_key_cannot_replace_a_known_one() -> None:
    assert told(opened(response_id="x", epoch=9, state="closed"))["epoch"] == 2


@pytest.mark.parametrize(
    "session",
    [
        {},
        {"instructions": "Be kind.", "audio": {"output": {"voice": "alto", "speed": 1.2}}},
        {
            "audio": {
                "input": {"format": {"type": "audio/pcmu"}},
                "output": {"format": {"type": "audio/pcma"}},
            }
        },
        {"tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}]},
        {"turn_detection": {"type": "semantic_vad", "eagerness": "medium"}},
        {"turn_detection": None, "modalities": ["text"], "max_output_tokens": 50, "tracing": "auto"},
        {"sample_rate_hz": 16_000, "output_audio_format": {"type": "pcm16", "rate": 8000}},
        {"audio": {"input": {"transcription": {"model": "w"}, "noise_reduction": {"type": "near_field"}}}},
    ],
)
def test_ga_is_valid_whatever_was_asked_for(session: dict[str, Any]) -> None:
    config = opened(p.Dialect.openai, **session)
    shown = told(config)
    RealtimeSessionCreateRequest.model_validate(shown)
    assert shown.keys() >= LIFETIME
    beta = told(opened(p.Dialect.openai_beta, **session))
    BetaSession.model_validate({**beta, "model": "gpt-realtime"})  # it knows models by name only


def test_ga_has_the_shape_that_stock_clients_need() -> None:
    session = told(opened(p.Dialect.openai))
    assert (session["type"], session["object"]) == ("realtime", "realtime.session")
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert session["audio"]["input"]["turn_detection"] == {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "create_response": True,
        "interrupt_response": True,
        "idle_timeout_ms": None,
    }
    assert (session["tools"], session["tool_choice"], session["output_modalities"]) == ([], "auto", ["audio"])
    assert session["max_output_tokens"] == "inf"


def test_another_rate_is_told_where_ga_has_no_word_for_it() -> None:
    session = told(opened(p.Dialect.openai, sample_rate_hz=16_000))
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "sample_rate_hz": 16_000}


def test_beta_is_flat() -> None:
    session = told(opened(p.Dialect.openai_beta, voice="alto", input_audio_format="g711_ulaw"))
    assert (session["voice"], session["input_audio_format"], session["output_audio_format"]) == (
        *("alto", "g711_ulaw", "pcm16"),
    )
    assert session["modalities"] == ["audio", "text"]
    assert "audio" not in session
    assert "output_modalities" not in session


def test_capabilities_have_the_keys_of_the_contract() -> None:
    told = p.DuplexCapabilities().to_realtime()
    for ours in ("chat_completions", "function_calls", "output_speed"):
        assert told.pop(f"supports_{ours}") is False
    assert len(told) == 40
    assert (told["implementation_level"], told["required_input_modalities"]) == (
        "turn_based_duplex",
        ["audio"],
    )
    ears_of_its_own = p.DuplexCapabilities(supports_model_native_turn_policy=True)
    assert ears_of_its_own.implementation_level == "turn_based_duplex", "a cascade is no native duplex model"
    native = p.DuplexCapabilities(
        supports_model_native_turn_policy=True,
        supports_model_internal_state=True,
        optional_input_modalities=("video", "audio"),
    ).to_realtime()
    assert (native["implementation_level"], native["optional_input_modalities"]) == (
        "model_native_duplex",
        ["audio", "video"],
    )
    assert json.loads(json.dumps(native)) == native
