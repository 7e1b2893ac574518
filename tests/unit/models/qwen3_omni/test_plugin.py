"""The session half of Qwen3-Omni."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from duologue.model.catalog import find_pipeline, installed
from duologue.model.pipeline import PipelineError, PipelineSpec, StageSpec
from duologue.model.plugin import InputUnit, Rebuild
from duologue.models.qwen3_omni import engine, heads
from duologue.models.qwen3_omni.heads import decode_config, decode_head, decode_heard
from duologue.models.qwen3_omni.plugin import Qwen3Omni, Qwen3OmniState
from duologue.protocol.duplex import ContentPart, Item, RealtimeProtocolError, SessionConfig, message_item
from duologue.runtime.settings import SystemSettings

pytestmark = pytest.mark.unit


def spec(**options: Any) -> PipelineSpec:
    stage = StageSpec("omni", "duologue.models.qwen3_omni.engine:build", "w")
    return PipelineSpec("q", "x:y", (stage,), options={"url": "http://h/v1", **options})


def model(**options: Any) -> Qwen3Omni:
    return Qwen3Omni(spec(**options))


def flags(state: Qwen3OmniState, **more: Any) -> int:
    unit = InputUnit(**{"pcm": b"", "turn_id": 0, "epoch": 0, "start_ms": 0, "auto": False, **more})
    return decode_head(model().plan_unit(state, unit).head).flags


def test_it_is_installed_and_nobody_has_to_run_it() -> None:
    pipeline = find_pipeline("qwen3-omni")
    assert "qwen3-omni" in installed()
    assert isinstance(Qwen3Omni(pipeline), Qwen3Omni)
    assert (pipeline.session_mode, pipeline.max_output_lead_ms) == ("turn", 1000)
    assert "qwen3-omni" not in SystemSettings().pipelines


def test_a_turn_ends_after_800_ms_of_silence_unless_the_options_say_otherwise() -> None:
    assert model().traits.turn_detection == {"type": "server_vad", "silence_duration_ms": 800}
    assert model(turn_detection={"type": "semantic_vad"}).traits.turn_detection == {"type": "semantic_vad"}
    assert not model().capabilities(2).supports_model_native_turn_policy


@pytest.mark.parametrize(
    ("config", "param"),
    [
        (SessionConfig(model="q", auto_response=True), "auto_response"),
        (SessionConfig(model="q", ref_audio="data:"), "ref_audio"),
        (SessionConfig(model="q", tools=({"name": "f"},)), "tools"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(config: SessionConfig, param: str) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        model(tools=False).validate(config, None)
    assert refused.value.param == param


def test_an_option_of_one_response_is_refused_by_name() -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        model().check_options({"temperature": 1})
    assert refused.value.param == "response.temperature"


def test_the_engine_is_told_how_the_session_wants_to_be_answered() -> None:
    plugin = model(voice="Ethan", extra_body={"a": 1}, max_tokens=9)
    told = decode_config(plugin.stage_configs(SessionConfig(model="q"), Qwen3OmniState())[0])
    assert (told.voice, told.speaks, told.max_tokens, told.extra_body) == ("Ethan", True, 9, {"a": 1})
    assert told.instructions
    config = SessionConfig(
        model="q", modalities=("text",), voice="Chelsie", instructions="", max_output_tokens=5, extra_body={"a": 2}
    )
    told = decode_config(plugin.stage_configs(config, Qwen3OmniState())[0])
    assert (told.voice, told.speaks, told.max_tokens, told.instructions) == ("Chelsie", False, 5, "")
    assert told.extra_body == {"a": 2}
    assert not decode_config(model(audio=False).stage_configs(SessionConfig(model="q"), Qwen3OmniState())[0]).speaks


def test_a_turn_is_asked_for_once_with_its_last_unit_or_with_silence() -> None:
    state, plugin = Qwen3OmniState(), model()
    plugin.on_turn_start(state, 0, 0)
    assert flags(state) == 0
    assert flags(state, final=True) == heads.FINAL | heads.ASK
    assert flags(state, continuation=True) == heads.CONTINUATION
    plugin.on_turn_start(state, 1, 0)
    assert flags(state, continuation=True) == heads.CONTINUATION | heads.ASK
    plugin.on_turn_start(state, 2, 0)
    plugin.on_cancel(state, 1)
    assert flags(state, final=True) == heads.FINAL


def test_items_and_results_go_to_the_engine_as_they_are() -> None:
    state, plugin = Qwen3OmniState(), model()
    item = message_item("i", "user", ContentPart(type="input_text", text="hello"))
    output = Item(id="o", type="function_call_output", call_id="c", output="1")
    for plan, told in ((plugin.on_item(state, item), item), (plugin.on_tool_output(state, output), output)):
        assert plan is not None
        assert decode_head(plan.head).item == msgspec.json.decode(msgspec.json.encode(told))
    control = plugin.on_heard(state, 120)
    assert control is not None
    assert (control.kind, decode_heard(control.body)) == (heads.HEARD, 120)
    rebuild = Rebuild("history", "worker_lost", (), (item,), SessionConfig(model="q"), 0, 0)
    (plan,) = plugin.plan_rebuild(state, rebuild)
    assert decode_head(plan.head).item == msgspec.json.decode(msgspec.json.encode(item))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"url": "ws://h"}, "options.url"),
        ({"turn_audio_s": 500}, "turn_audio_s"),
        ({"api_key_env": "NOT_SET_ANYWHERE"}, "options.api_key_env"),
        ({"vioce": "x"}, "vioce"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        engine.build(spec(**options), 0)
