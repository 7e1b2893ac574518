"""The session half of a bridge."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from duologue.model.catalog import find_pipeline, installed
from duologue.model.outputs import ModelOutput, ToolCall, encode_output
from duologue.model.pipeline import PipelineSpec, StageSpec
from duologue.model.plugin import InputUnit, Rebuild
from duologue.models.bridge import heads
from duologue.models.bridge.heads import decode_config, decode_head, decode_heard
from duologue.models.bridge.plugin import Bridge, BridgeState
from duologue.protocol.duplex import (
    ContentPart,
    Dialect,
    Item,
    RealtimeProtocolError,
    SessionConfig,
    assistant_item,
    message_item,
)
from duologue.runtime.settings import SystemSettings

pytestmark = pytest.mark.unit


def bridge(**options: Any) -> Bridge:
    stage = StageSpec("upstream", "duologue.models.bridge.engine:build", "w")
    return Bridge(PipelineSpec("b", "x:y", (stage,), options={"url": "ws://up", **options}))


def unit(**more: Any) -> InputUnit:
    return InputUnit(**{"pcm": b"pcm", "turn_id": 0, "epoch": 0, "start_ms": 0, "auto": False, **more})


def flags(plugin: Bridge, state: BridgeState, **more: Any) -> int:
    return decode_head(plugin.plan_unit(state, unit(**more)).head).flags


def test_it_is_installed_and_nobody_has_to_run_it() -> None:
    assert "bridge" in installed()
    assert isinstance(Bridge(find_pipeline("bridge")), Bridge)
    assert "bridge" not in SystemSettings().pipelines


def test_the_units_are_those_of_the_upstream_model() -> None:
    traits = bridge(unit_ms=1000, input_rate_hz=24_000, output_rate_hz=22_050).traits
    assert (traits.unit_ms, traits.input_rate_hz, traits.output_rate_hz) == (1000, 24_000, 22_050)
    assert (bridge().traits.input_rate_hz, bridge(dialect="openai").traits.input_rate_hz) == (16_000, 24_000)


@pytest.mark.parametrize(
    ("options", "native"),
    [
        ({}, True),
        ({"dialect": "openai"}, False),
        ({"dialect": "openai", "turn_detection": {"type": "semantic_vad"}}, True),
        ({"native_turns": False}, False),
    ],
)
def test_who_tells_turns_apart_follows_from_the_options(options: dict[str, Any], native: bool) -> None:
    plugin = bridge(**options)
    assert plugin.traits.native_turns is native
    assert plugin.capabilities(2).supports_model_native_turn_policy is native
    auto = SessionConfig(model="b", auto_response=True)
    if native:
        plugin.validate(auto, None)
    else:
        with pytest.raises(RealtimeProtocolError) as refused:
            plugin.validate(auto, None)
        assert refused.value.param == "extra_body.auto_response"


def test_what_the_options_rule_out_is_refused_by_name() -> None:
    plugin = bridge(dialect="openai", tools=False)
    for config, param in (
        (SessionConfig(model="b", tools=({"type": "function", "name": "f"},)), "tools"),
        (SessionConfig(model="b", ref_audio="data:"), "ref_audio"),
    ):
        with pytest.raises(RealtimeProtocolError) as refused:
            plugin.validate(config, None)
        assert refused.value.param == param
    old, new = SessionConfig(model="b"), SessionConfig(model="b", extra_body={"k": 1})
    with pytest.raises(RealtimeProtocolError, match="fixed"):
        plugin.validate(new, old)


@pytest.mark.parametrize("name", ["temperature", "tools", "voice", "instructions", "speed"])
def test_an_option_of_one_response_is_refused_by_name(name: str) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        bridge().check_options({name: 2})
    assert refused.value.param == f"response.{name}"
    bridge().check_options({"speed": 1, "metadata": {"a": "b"}})


def test_the_engine_is_told_the_whole_session() -> None:
    plugin = bridge(extra_body={"a": 1, "b": 1})
    config = SessionConfig(
        model="b", auto_response=True, instructions="be kind", voice="v", temperature=0.5, extra_body={"b": 2}
    )
    told = decode_config(plugin.stage_configs(config, BridgeState())[0])
    assert (told.auto, told.instructions, told.voice, told.temperature) == (True, "be kind", "v", 0.5)
    assert told.extra_body == {"a": 1, "b": 2}
    assert told.speaks_duplex
    openai = msgspec.structs.replace(config, dialect=Dialect.openai)
    assert not decode_config(plugin.stage_configs(openai, BridgeState())[0]).speaks_duplex


def test_a_turn_is_asked_for_once_with_its_last_unit() -> None:
    plugin, state = bridge(), BridgeState()
    plugin.on_turn_start(state, 0, 0)
    assert flags(plugin, state) & heads.ASK == 0
    assert flags(plugin, state, final=True) & (heads.ASK | heads.FINAL) == heads.ASK | heads.FINAL
    assert flags(plugin, state, continuation=True) & heads.ASK == 0


def test_a_turn_without_sound_is_asked_for_with_silence_that_brings_no_sound() -> None:
    plugin, state = bridge(), BridgeState()
    plugin.on_turn_start(state, 0, 0)
    plan = plugin.plan_unit(state, unit(continuation=True))
    assert decode_head(plan.head).flags == heads.ASK | heads.CONTINUATION
    assert plan.frames == ()


def test_a_cancelled_turn_is_not_asked_for() -> None:
    plugin, state = bridge(), BridgeState()
    plugin.on_turn_start(state, 0, 0)
    plugin.on_cancel(state, 1)
    assert flags(plugin, state, final=True) & heads.ASK == 0


def test_a_commit_of_an_auto_session_goes_with_its_next_unit_only() -> None:
    plugin, state = bridge(), BridgeState()
    plugin.on_commit(state)
    assert flags(plugin, state, auto=True) & heads.COMMIT
    assert flags(plugin, state, auto=True) & heads.COMMIT == 0


def test_items_go_up_without_their_ids() -> None:
    plugin, state = bridge(), BridgeState()
    parts = (ContentPart(type="input_text", text="what is it?"), ContentPart(type="input_image", image_url="data:x"))
    plan = plugin.on_item(state, message_item("item_1", "user", *parts))
    assert plan is not None
    assert decode_head(plan.head).item == {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "what is it?"}, {"type": "input_image", "image_url": "data:x"}],
    }


def test_the_last_result_is_the_one_to_be_answered() -> None:
    plugin, state = bridge(), BridgeState()
    for call in ("a", "b"):
        plugin.project(state, encode_output(ModelOutput(tool_calls=(ToolCall("f", "{}", call),))), ())
    answers = []
    for call in ("a", "b"):
        plan = plugin.on_tool_output(state, Item(id="i", type="function_call_output", call_id=call, output="{}"))
        assert plan is not None
        head = decode_head(plan.head)
        assert head.item == {"type": "function_call_output", "call_id": call, "output": "{}"}
        answers.append(head.answers)
    assert answers == [False, True]


def test_what_was_heard_is_a_control() -> None:
    control = bridge().on_heard(BridgeState(), 120)
    assert control is not None
    assert (control.stage, control.kind, decode_heard(control.body).ms) == (0, heads.HEARD, 120)


def test_a_new_upstream_session_is_given_the_conversation() -> None:
    items = (
        message_item("i1", "user", ContentPart(type="input_audio", transcript="hello")),
        assistant_item("r1", status="completed", transcript="hi there"),
    )
    rebuild = Rebuild("history", "worker_lost", (), items, SessionConfig(model="b"), 0, 0)
    told = [decode_head(plan.head).item for plan in bridge().plan_rebuild(BridgeState(), rebuild)]
    assert told == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi there"}]},
    ]
