"""Opening a session, merging updates into it, and refusing them whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from duologue.protocol import duplex as p

pytestmark = pytest.mark.unit

VAD = {"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 400, "prefix_padding_ms": 200}


def opened(dialect: p.Dialect = p.Dialect.duplex, **session: Any) -> p.SessionConfig:
    return p.SessionConfig.open(session, dialect=dialect, model="loopback")


def refused(config: p.SessionConfig, **patch: Any) -> p.RealtimeProtocolError:
    before = msgspec.json.encode(config)
    with pytest.raises(p.RealtimeProtocolError) as error:
        config.updated(patch)
    assert msgspec.json.encode(config) == before
    return error.value


def test_defaults_of_duplex() -> None:
    config = opened()
    assert (config.input_format, config.output_format) == (
        p.AudioFormat("pcm16", 16_000),
        p.AudioFormat("pcm16", 24_000),
    )
    assert (config.turn_detection, config.overlap_policy) == (None, "listen_only")
    assert (config.playback_commit_policy, config.auto_response) == ("ack_only", False)
    assert (config.overlap_short_ack_ms, config.overlap_barge_in_ms) == (700, 1200)
    assert (config.modalities, config.idle_timeout_s, config.model) == (("text", "audio"), 300, "loopback")


@pytest.mark.parametrize("dialect", [p.Dialect.openai, p.Dialect.openai_beta])
def test_defaults_of_the_openai_dialects(dialect: p.Dialect) -> None:
    config = opened(dialect)
    assert config == p.SessionConfig.provisional(dialect, model="loopback")
    assert config.input_format == config.output_format == p.AudioFormat("pcm16", 24_000)
    assert config.turn_detection == p.ServerVad()
    assert (p.ServerVad().silence_duration_ms, p.ServerVad().create_response) == (500, True)
    assert (config.overlap_policy, config.playback_commit_policy) == (
        "barge_in_on_speech",
        "commit_all_on_done",
    )
    native = p.SessionConfig.open({}, dialect=dialect, model="m", auto_default=True)
    assert native.auto_response
    assert not p.SessionConfig.open({}, dialect=p.Dialect.duplex, model="m", auto_default=True).auto_response


def test_limits_are_taken_and_may_be_lowered() -> None:
    limits = p.SessionLimits(max_session_s=600, disconnect_grace_s=20, overflow_policy="fail_response")
    config = p.SessionConfig.open(
        {"max_session_s": 900, "disconnect_grace_s": 5, "idle_timeout_s": 1},
        dialect=p.Dialect.duplex,
        model="m",
        limits=limits,
    )
    assert (config.max_session_s, config.disconnect_grace_s, config.idle_timeout_s) == (600, 5, 1)
    assert config.overflow_policy == "fail_response"
    assert opened(overflow_policy="fail_response").overflow_policy == "fail_response"
    assert opened(idle_timeout_s=0).idle_timeout_s == opened(idle_timeout_s=None).idle_timeout_s == 300


def test_the_output_rate_of_duplex_is_the_models() -> None:
    config = p.SessionConfig.open({}, dialect=p.Dialect.duplex, model="m", output_rate_hz=22_050)
    assert config.output_format.rate == 22_050


# (patch, field, value): every spelling
SPELLINGS: list[tuple[dict[str, Any], str, Any]] = [
    ({"output_modalities": ["text"]}, "modalities", ("text",)),
    ({"modalities": ["audio", "text"], "output_modalities": ["text"]}, "modalities", ("audio", "text")),
    ({"audio": {"output": {"voice": "alto"}}}, "voice", "alto"),
    ({"voice": "bass", "audio": {"output": {"voice": "alto"}}}, "voice", "bass"),
    ({"audio": {"output": {"speed": 1.5}}}, "speed", 1.5),
    ({"max_output_tokens": 9}, "max_output_tokens", 9),
    ({"max_tokens": "infinity"}, "max_output_tokens", None),
    ({"max_response_output_tokens": "inf"}, "max_output_tokens", None),
    ({"audio": {"input": {"transcription": {"model": "w"}}}}, "transcription", {"model": "w"}),
    ({"input_audio_transcription": {"model": "w"}}, "transcription", {"model": "w"}),
    (
        {"audio": {"input": {"noise_reduction": {"type": "far_field"}}}},
        "noise_reduction",
        {"type": "far_field"},
    ),
    ({"input_audio_format": "G711-ULAW"}, "input_format", p.AudioFormat("g711_ulaw", 8000)),
    (
        {"input_audio_format": "g711_ulaw", "sample_rate_hz": 16_000},
        "input_format",
        p.AudioFormat("g711_ulaw", 16_000),
    ),
    (
        {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 48_000}}}},
        "input_format",
        p.AudioFormat("pcm16", 48_000),
    ),
    (
        {"audio": {"input": {"format": {"type": "audio/pcma"}}}},
        "input_format",
        p.AudioFormat("g711_alaw", 8000),
    ),
    ({"audio": {"input": {"sample_rate_hz": 8000}}}, "input_format", p.AudioFormat("pcm16", 8000)),
    ({"sample_rate": 44_100}, "input_format", p.AudioFormat("pcm16", 44_100)),
    ({"input_audio_format": "f32le"}, "input_format", p.AudioFormat("pcm_f32le", 16_000)),
    (
        {"output_audio_format": {"type": "pcm16", "rate": 8000}},
        "output_format",
        p.AudioFormat("pcm16", 8000),
    ),
    ({"response_format": "wav"}, "output_format", p.AudioFormat("wav", 24_000)),
    ({"output_audio_format": "audio/pcmu"}, "output_format", p.AudioFormat("g711_ulaw", 8000)),
    ({"audio": {"output": {"sample_rate_hz": 16_000}}}, "output_format", p.AudioFormat("pcm16", 16_000)),
    ({"extra_body": {"overlap_silence_rms": 0.5}, "overlap_silence_rms": 0.1}, "overlap_silence_rms", 0.5),
    ({"overlap_short_ack_ms": 250.9}, "overlap_short_ack_ms", 250),
    ({"playback_commit_policy": "commit_all_on_done"}, "playback_commit_policy", "commit_all_on_done"),
    ({"playback_commit_policy": "what?"}, "playback_commit_policy", "commit_all_on_done"),
    ({"extra_body": {"playback_commit_policy": "ack_only"}}, "playback_commit_policy", "ack_only"),
    ({"tracing": "auto"}, "tracing", "auto"),
]


@pytest.mark.parametrize(("patch", "field", "value"), SPELLINGS)
def test_every_spelling_is_understood(patch: dict[str, Any], field: str, value: Any) -> None:
    config = opened()
    updated = config.updated(patch)
    assert getattr(updated, field) == value
    assert p.changed(config, updated) <= {field}


def test_an_open_in_duplex_is_ack_only_whatever_it_asks_for() -> None:
    assert opened(playback_commit_policy="commit_all_on_done").playback_commit_policy == "ack_only"
    asked = opened(p.Dialect.openai, playback_commit_policy="ack_only")
    assert asked.playback_commit_policy == "ack_only"


def test_a_format_keeps_its_rate_until_it_changes() -> None:
    config = opened(input_audio_format="g711_ulaw")
    assert config.updated({"input_audio_format": "g711_ulaw"}).input_format.rate == 8000
    assert config.updated({"input_audio_format": "pcm16"}).input_format.rate == 16_000
    wide = opened(sample_rate_hz=48_000).updated({"input_audio_format": "pcm_f32le"})
    assert wide.input_format == p.AudioFormat("pcm_f32le", 48_000)
    ga = opened(p.Dialect.openai, input_audio_format="g711_alaw")
    assert ga.updated({"input_audio_format": "pcm16"}).input_format.rate == 24_000


@pytest.mark.parametrize(
    "change",
    [
        {"turn_detection": {"threshold": 0.8}},
        {"audio": {"input": {"turn_detection": {"threshold": 0.8}}}},
        {"turn_detection": {"threshold": 0.2}, "audio": {"input": {"turn_detection": {"threshold": 0.8}}}},
    ],
)
def test_a_leaf_of_turn_detection_is_merged(change: dict[str, Any]) -> None:
    config = opened(turn_detection=VAD)
    merged = config.updated(change)
    assert isinstance(config.turn_detection, p.ServerVad)
    assert merged.turn_detection == msgspec.structs.replace(config.turn_detection, threshold=0.8)
    assert p.changed(config, merged) == {"turn_detection"}


def test_a_changed_type_starts_from_its_own_defaults() -> None:
    config = opened(turn_detection={**VAD, "create_response": False})
    semantic = config.updated({"turn_detection": {"type": "semantic_vad", "eagerness": "low"}})
    assert semantic.turn_detection == p.SemanticVad(eagerness="low", create_response=True)
    assert semantic.updated({"turn_detection": {"type": "server_vad"}}).turn_detection == p.ServerVad()
    assert semantic.updated({"turn_detection": {"eagerness": "high"}}).turn_detection == p.SemanticVad(eagerness="high")
    pauses = [p.SemanticVad(eagerness=name).max_pause_ms for name in ("low", "medium", "high", "auto")]
    assert pauses == [8000, 4000, 2000, 4000]


@pytest.mark.parametrize("key", ["turn_detection", "voice", "instructions", "metadata", "temperature", "tools"])
def test_null_switches_off(key: str) -> None:
    config = opened(
        turn_detection=VAD,
        voice="alto",
        instructions="Hm.",
        metadata={"a": "b"},
        temperature=1,
        tools=[{"a": 1}],
    )
    assert getattr(config, key) is not None
    assert getattr(config.updated({key: None}), key) is None


@pytest.mark.parametrize(
    ("session", "policy"),
    [
        ({}, "listen_only"),
        ({"turn_detection": None}, "listen_only"),
        ({"turn_detection": {"type": "server_vad"}}, "barge_in_on_speech"),
        ({"turn_detection": {"type": "server_vad", "interrupt_response": False}}, "listen_only"),
        ({"turn_detection": {"type": "semantic_vad"}}, "barge_in_on_speech"),
        ({"overlap_policy": "barge_in_on_sustained_speech"}, "barge_in_on_sustained_speech"),
        (
            {"overlap_policy": "barge_in_on_sustained_speech", "turn_detection": VAD},
            "barge_in_on_sustained_speech",
        ),
        ({"extra_body": {"overlap_policy": "barge_in_on_speech"}}, "barge_in_on_speech"),
        ({"turn_detection": VAD, "overlap_policy": None}, "barge_in_on_speech"),
    ],
)
def test_turn_detection_decides_the_overlap_policy(session: dict[str, Any], policy: str) -> None:
    assert opened(**session).overlap_policy == policy


def test_the_policy_follows_when_detection_changes() -> None:
    config = opened(turn_detection=VAD)
    assert config.updated({"turn_detection": None}).overlap_policy == "listen_only"
    assert config.updated({"turn_detection": {"interrupt_response": False}}).overlap_policy == "listen_only"
    assert config.updated({"voice": "a"}).overlap_policy == "barge_in_on_speech"
    sustained = config.updated({"overlap_policy": "barge_in_on_sustained_speech"})
    assert sustained.updated({"turn_detection": None}).overlap_policy == "barge_in_on_sustained_speech"


# (patch, code, param)
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input_audio_format": "mp3"}, "unsupported_audio_format", "session.input_audio_format"),
    ({"input_audio_format": "wav"}, "unsupported_audio_format", "session.input_audio_format"),
    ({"output_audio_format": "flac"}, "unsupported_audio_format", "session.output_audio_format"),
    ({"response_format": {"type": "opus"}}, "unsupported_audio_format", "session.response_format"),
    (
        {"audio": {"input": {"format": {"type": "mp3"}}}},
        "unsupported_audio_format",
        "session.audio.input.format",
    ),
    ({"sample_rate_hz": 4000}, "bad_event", "session.sample_rate_hz"),
    ({"sample_rate_hz": "16000"}, "bad_event", "session.sample_rate_hz"),
    ({"input_audio_format": {"type": "pcm", "rate": True}}, "bad_event", "session.input_audio_format.rate"),
    ({"input_audio_format": 5}, "bad_event", "session.input_audio_format"),
    ({"input_audio_format": {}}, "bad_event", "session.input_audio_format"),
    *(
        ({"turn_detection": settings}, "unsupported_turn_detection", f"session.turn_detection{leaf}")
        for settings, leaf in (
            ({"type": "bogus"}, ".type"),
            ({"type": 5}, ".type"),
            ({"threshold": 0.1}, ".threshold"),
            ({"threshold": 0.15}, ".threshold"),
            ({"threshold": 1.5}, ".threshold"),
            ({"threshold": True}, ".threshold"),
            ({"silence_duration_ms": -1}, ".silence_duration_ms"),
            ({"prefix_padding_ms": "long"}, ".prefix_padding_ms"),
            ({"min_speech_duration_ms": 0.5}, ".min_speech_duration_ms"),
            ({"type": "semantic_vad", "eagerness": "wild"}, ".eagerness"),
            ({"type": "semantic_vad", "threshold": 0.5}, ".threshold"),
            ({"create_response": "yes"}, ".create_response"),
            ({"interrupt_response": 1}, ".interrupt_response"),
            ({"mystery": 1}, ".mystery"),
            ({"idle_timeout_ms": 5000}, ".idle_timeout_ms"),
        )
    ),
    ({"turn_detection": "server_vad"}, "bad_event", "session.turn_detection"),
    (
        {"audio": {"input": {"turn_detection": {"threshold": 9}}}},
        "unsupported_turn_detection",
        "session.audio.input.turn_detection.threshold",
    ),
    ({"overlap_policy": "listen_only"}, "unsupported_turn_detection", "session.overlap_policy"),
    (
        {"overlap_policy": "barge_in_on_speech", "turn_detection": None},
        "unsupported_turn_detection",
        "session.overlap_policy",
    ),
    ({"overlap_policy": "sing"}, "bad_event", "session.overlap_policy"),
    ({"overflow_policy": "sing"}, "bad_event", "session.overflow_policy"),
    ({"model": "another"}, "model_update_unsupported", "session.model"),
    ({"ref_audio": "data:audio/wav;base64,AAAA"}, "ref_audio_update_unsupported", "session.ref_audio"),
    ({"idle_timeout_s": 5}, "invalid_session_config", "session.idle_timeout_s"),
    ({"initial_user_text": "x"}, "invalid_session_config", "session.initial_user_text"),
    ({"extra_body": {"auto_response": True}}, "invalid_session_config", "session.auto_response"),
    ({"extra_body": {"auto_response": "yes"}}, "bad_event", "session.extra_body.auto_response"),
    (
        {"extra_body": {"ref_audio_path": "/etc/x"}},
        "unsupported_ref_audio_path",
        "session.extra_body.ref_audio_path",
    ),
    ({"type": "transcription"}, "unsupported", "session.type"),
    *(
        ({name: value}, "bad_event", f"session.{name}")
        for name, value in (
            *(("temperature", True), ("temperature", "warm"), ("temperature", -1), ("speed", "fast")),
            *(("overlap_short_ack_ms", False), ("overlap_barge_in_ms", "x"), ("overlap_silence_rms", -1)),
            *(
                ("instructions", 5),
                ("modalities", "audio"),
                ("modalities", [5]),
                ("voice", {}),
                ("tools", {}),
            ),
            *(("tools", [5]), ("tool_choice", 5), ("metadata", "x"), ("include", "x"), ("prompt", 5)),
            *(("input_audio_transcription", "w"), ("input_audio_noise_reduction", 5), ("tracing", 5)),
            *(
                ("audio", 5),
                ("extra_body", [1]),
                ("max_tokens", 0),
                ("max_tokens", "lots"),
                ("max_tokens", 1.5),
            ),
            *(("model", 5), ("ref_audio", 5), ("idle_timeout_s", "x"), ("playback_commit_policy", 5)),
        )
    ),
    ({"audio": {"output": {"speed": "x"}}}, "bad_event", "session.audio.output.speed"),
    ({"foo": "x" * 70_000}, "bad_event", "session"),
]


@pytest.mark.parametrize(("patch", "code", "param"), REFUSED)
def test_a_refused_update_changes_nothing_and_names_the_key(patch: dict[str, Any], code: str, param: str) -> None:
    config = opened(instructions="Stay.", turn_detection=VAD)
    error = refused(config, **patch)
    assert (error.code, (error.param or "")[: len(param)]) == (code, param)
    assert refused(config, **{"instructions": "Go.", **patch}).code == code


@pytest.mark.parametrize(
    ("session", "code"),
    [
        ({"input_audio_format": "mp3"}, "invalid_session_config"),
        ({"turn_detection": {"type": "bogus"}}, "invalid_session_config"),
        ({"temperature": "warm"}, "invalid_session_config"),
        ({"extra_body": {"tts_ref_audio_path": "x"}}, "unsupported_ref_audio_path"),
    ],
)
def test_a_bad_open_in_duplex_has_the_code_of_the_contract(session: dict[str, Any], code: str) -> None:
    with pytest.raises(p.RealtimeProtocolError) as error:
        opened(**session)
    assert error.value.code == code
    assert (error.value.param or "").startswith("session.")


def test_a_bad_open_in_the_openai_dialects_keeps_its_code() -> None:
    with pytest.raises(p.RealtimeProtocolError) as error:
        opened(p.Dialect.openai, input_audio_format="mp3")
    assert error.value.code == "unsupported_audio_format"


@pytest.mark.parametrize("dialect", [p.Dialect.openai, p.Dialect.openai_beta])
@pytest.mark.parametrize(("key", "name"), [("input_audio_format", "pcm_f32le"), ("output_audio_format", "wav")])
def test_a_format_without_a_name_there_is_refused(dialect: p.Dialect, key: str, name: str) -> None:
    error = refused(opened(dialect), **{key: name})
    assert (error.code, error.param) == ("unsupported_audio_format", f"session.{key}")


def test_what_is_fixed_may_be_named_again() -> None:
    config = opened(model="m", ref_audio="data:x", idle_timeout_s=9, extra_body={"auto_response": True})
    same = {"model": "m", "ref_audio": "data:x", "idle_timeout_s": 9, "extra_body": {"auto_response": True}}
    assert config.updated({**same, "type": "realtime", "id": "other", "state": "closed"}) == config


def test_extra_body_is_merged_key_by_key() -> None:
    config = opened(extra_body={"loopback": {"script": []}, "a": 1, "overlap_short_ack_ms": 5})
    assert config.extra_body == {"loopback": {"script": []}, "a": 1}
    assert config.overlap_short_ack_ms == 5
    assert config.updated({"extra_body": {"a": None, "b": 2}}).extra_body == {
        "loopback": {"script": []},
        "b": 2,
    }


def test_a_config_survives_a_checkpoint() -> None:
    for config in (opened(turn_detection=VAD, foo={"a": 1}), opened(p.Dialect.openai_beta, tools=[{"a": 1}])):
        packed = msgspec.msgpack.encode(config)
        assert msgspec.msgpack.decode(packed, type=p.SessionConfig) == config


def test_unknown_keys_are_kept_and_replaced() -> None:
    config = opened(foo=1, bar=2)
    assert config.extra == {"foo": 1, "bar": 2}
    assert config.updated({"foo": None, "bar": 3}).extra == {"bar": 3}
