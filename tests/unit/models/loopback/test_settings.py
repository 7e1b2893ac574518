"""What `extra_body.loopback` may be, and how what is wrong is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from unit.models.loopback.chain import Chain, follow

from duologue.model.pipeline import PipelineError
from duologue.models.loopback.options import read_options
from duologue.models.loopback.plugin import Loopback
from duologue.protocol.duplex import RealtimeProtocolError, SessionConfig

pytestmark = pytest.mark.unit

SPEAK = {"speak": {"units": 1}}


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        (5, ""),
        ([], ""),
        ({"scrpt": []}, ".scrpt"),
        ({"script": []}, ".script"),
        ({"script": {"listen": 1}}, ".script"),
        ({"script": [SPEAK] * 1001}, ".script"),
        ({"script": [{"speak": {"text": "x" * 40_000}}]}, ".script"),
        ({"script": [SPEAK, 5]}, ".script[1]"),
        ({"script": [{}]}, ".script[0]"),
        ({"script": [{"sing": 1}]}, ".script[0]"),
        ({"script": [{"listen": 1, "twice": True}]}, ".script[0].twice"),
        ({"script": [{"listen": 0}]}, ".script[0].listen"),
        ({"script": [{"listen": True}]}, ".script[0].listen"),
        ({"script": [{"listen": 1.5}]}, ".script[0].listen"),
        ({"script": [{"speak": {"units": 0}}]}, ".script[0].speak.units"),
        ({"script": [{"speak": {"units": 1, "text": 5}}]}, ".script[0].speak.text"),
        ({"script": [{"speak": {"end_of_turn": 1}}]}, ".script[0].speak.end_of_turn"),
        ({"script": [{"speak": {"volume": 1}}]}, ".script[0].speak.volume"),
        ({"script": [{"tool_call": {}}]}, ".script[0].tool_call.name"),
        ({"script": [{"tool_call": {"name": "a", "arguments": "{}"}}]}, ".script[0].tool_call.arguments"),
        ({"script": [{"transcript": None}]}, ".script[0].transcript"),
        ({"script": [{"when": "music"}]}, ".script[0].when"),
        ({"script": [{"when": "silence", "units": 0}]}, ".script[0].units"),
        ({"audio": "tone"}, ".audio"),
        ({"audio": "tone:nan"}, ".audio"),
        ({"audio": "tone:-5"}, ".audio"),
        ({"audio": "noise"}, ".audio"),
        ({"stage_ms": []}, ".stage_ms"),
        ({"stage_ms": [0] * 5}, ".stage_ms"),
        ({"stage_ms": [0, -1]}, ".stage_ms[1]"),
        ({"stage_ms": 5}, ".stage_ms"),
        ({"jitter_ms": "5"}, ".jitter_ms"),
        ({"seed": 0.5}, ".seed"),
        ({"context_units": 0}, ".context_units"),
        ({"fail": 5}, ".fail"),
        ({"fail": {"stage": 4, "unit": 0, "how": "error"}}, ".fail.stage"),
        ({"fail": {"stage": 0, "unit": 0, "how": "sulk"}}, ".fail.how"),
        ({"fail": {"stage": 0, "how": "error"}}, ".fail.unit"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_refused_by_name(settings: Any, param: str) -> None:
    with pytest.raises(RealtimeProtocolError) as refusal:
        Chain(extra_body={"loopback": settings})
    assert refusal.value.code == "invalid_duplex_runtime_config"
    assert refusal.value.param == f"extra_body.loopback{param}"


def test_the_settings_are_fixed_at_open() -> None:
    chain = follow(SPEAK)
    other = msgspec.structs.replace(chain.config, extra_body={"loopback": {"audio": "echo"}})
    with pytest.raises(RealtimeProtocolError) as refusal:
        chain.plugin.validate(other, chain.config)
    assert refusal.value.param == "extra_body.loopback"
    chain.plugin.validate(msgspec.structs.replace(chain.config, temperature=0.5), chain.config)


@pytest.mark.parametrize("name", ["instructions", "temperature", "tools"])
def test_an_option_that_means_nothing_to_it_is_refused_by_name(name: str) -> None:
    plugin = follow().plugin
    with pytest.raises(RealtimeProtocolError) as refusal:
        plugin.check_options({name: "x"})
    assert name in (refusal.value.param or "")
    plugin.check_options({name: None, "metadata": {}})


@pytest.mark.parametrize(
    ("model", "unit_ms", "native"),
    [("loopback", 80, True), ("loopback-1s", 1000, True), ("loopback-talk", 80, False)],
)
def test_what_a_model_says_of_itself(model: str, unit_ms: int, native: bool) -> None:
    plugin = Chain(model).plugin
    assert (plugin.traits.unit_ms, plugin.traits.native_turns) == (unit_ms, native)
    assert plugin.traits.continuation_turn == plugin.traits.continuation_auto == 4096
    told = plugin.capabilities(256)
    assert told.chunk_period_ms == unit_ms
    assert told.supports_model_native_turn_policy is native
    for ability in ("barge_in", "session_resume", "audio_truncate", "text_only_turn", "input_append"):
        assert getattr(told, f"supports_{ability}") is True


def test_a_long_script_fits_into_a_checkpoint() -> None:
    script = [{"transcript": "ü" * 16}] * 999 + [SPEAK]
    assert len(msgspec.msgpack.encode(follow(*script).state)) < 64 * 1024


def test_a_script_is_refused_where_there_is_none() -> None:
    with pytest.raises(RealtimeProtocolError) as refusal:
        Chain("loopback-talk", extra_body={"loopback": {"script": [SPEAK]}})
    assert refusal.value.param == "extra_body.loopback.script"


@pytest.mark.parametrize("options", [{"unit_ms": 5}, {"units": 80}, {"unit_ms": "80"}], ids=str)
def test_a_pipeline_with_wrong_options_is_refused(options: dict[str, Any]) -> None:
    pipeline = msgspec.structs.replace(Chain().plugin.pipeline, options=options)
    with pytest.raises(PipelineError, match="loopback"):
        Loopback(pipeline)
    with pytest.raises(PipelineError):
        read_options(msgspec.structs.replace(pipeline, options={}, stages=pipeline.stages[:2]))


def test_no_settings_are_all_defaults() -> None:
    plugin = Chain().plugin
    config = SessionConfig(model="loopback")
    plugin.validate(config, None)
    assert len(plugin.stage_configs(config, plugin.new_state(config))) == 4
