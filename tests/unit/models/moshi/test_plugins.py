"""The session halves of Moshi and PersonaPlex: what they refuse, what they submit, what they count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duologue.model.catalog import find_pipeline
from duologue.model.outputs import ModelOutput, Usage, encode_output
from duologue.model.pipeline import PipelineError, PipelineSpec, resolve
from duologue.model.plugin import InputUnit
from duologue.models.moshi.options import Sampling, Talking
from duologue.models.moshi.plugin import Moshi
from duologue.models.moshi.wire import FORCE_LISTEN, SlotConfig, decode_config
from duologue.models.personaplex.options import PUBLISHED
from duologue.models.personaplex.plugin import PersonaPlex
from duologue.protocol.duplex import RealtimeProtocolError, SessionConfig

pytestmark = pytest.mark.unit
PLAIN = SessionConfig(model="moshi", auto_response=True)
UNIT = InputUnit(pcm=bytes(1920 * 4), turn_id=1, epoch=0, start_ms=0, auto=True)


def pipeline(name: str = "moshi", **options: Any) -> PipelineSpec:
    spec = find_pipeline(name)
    return msgspec.structs.replace(spec, options={**spec.options, **options})


def config(**changed: Any) -> SessionConfig:
    return msgspec.structs.replace(PLAIN, **changed)


def slot(plugin: Moshi, session: SessionConfig = PLAIN) -> SlotConfig:
    plugin.validate(session, None)
    [told] = plugin.stage_configs(session, plugin.new_state(session))
    return decode_config(told)


def refusal(plugin: Moshi, session: SessionConfig, current: SessionConfig | None = None) -> tuple[str, str | None]:
    with pytest.raises(RealtimeProtocolError) as refused:
        plugin.validate(session, current)
    return refused.value.code, refused.value.param


MOSHI = Moshi(pipeline())
PERSONAPLEX = PersonaPlex(pipeline("personaplex"))


@pytest.mark.parametrize("plugin", [MOSHI, PERSONAPLEX])
def test_the_pipeline_names_its_plugin_and_one_worker(plugin: Moshi) -> None:
    spec = plugin.pipeline
    assert resolve(spec.plugin) is type(plugin)
    [stage] = spec.stages
    assert (stage.venv, stage.requires) == ("moshi", ("moshi==0.2.13",))
    assert stage.max_batch == stage.slots == spec.max_sessions, "one tick can take everybody"
    assert 0 < stage.gather_ms < 80
    assert spec.rebuild == "input"
    traits = plugin.traits
    assert (traits.unit_ms, traits.input_rate_hz, traits.output_rate_hz) == (80, 24_000, 24_000)
    assert traits.auto_only and traits.native_turns and traits.answers == "units"


def test_no_engine_library_is_imported() -> None:
    code = (
        "import sys, duologue.models.personaplex.plugin\n"
        "print(sorted({'torch', 'moshi', 'sentencepiece', 'safetensors'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"colour": "red"}, "colour"),
        ({"checkpoint": ""}, "checkpoint"),
        ({"device": "tpu"}, "device"),
        ({"dtype": "int8"}, "dtype"),
        ({"sampling": {"temperature_text": 3.0}}, "temperature_text"),
        ({"sampling": {"top_k_audio": 251}}, "top_k_audio"),
        ({"talking": {"pause_ms": 0}}, "pause_ms"),
        ({"talking": {"mumbles": True}}, "mumbles"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        Moshi(pipeline(**options))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"voices": ["../secret"]}, "../secret"),
        ({"voices": ["a/b"]}, "a/b"),
        ({"voices": ["."]}, "voices"),
        ({"voice": "NOBODY"}, "NOBODY"),
        ({"max_instructions": 0}, "max_instructions"),
    ],
)
def test_a_voice_of_the_pipeline_is_a_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        PersonaPlex(pipeline("personaplex", **options))


def test_two_stages_are_refused() -> None:
    spec = pipeline()
    with pytest.raises(PipelineError, match="one stage"):
        Moshi(msgspec.structs.replace(spec, stages=spec.stages * 2))


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        (config(instructions="Be kind."), "unsupported", "session.instructions"),
        (config(voice="alloy"), "unsupported", "session.voice"),
        (config(tools=({"name": "f"},)), "unsupported", "session.tools"),
        (config(max_output_tokens=9), "unsupported", "session.max_output_tokens"),
        (config(initial_user_text="Hello."), "unsupported", "session.initial_user_text"),
        (config(ref_audio="AAAA"), "unsupported", "session.ref_audio"),
        (config(temperature=2.5), "unsupported", "session.temperature"),
        (config(extra_body={"voice_path": "/etc/passwd"}), "invalid_duplex_runtime_config", "extra_body.voice_path"),
        (config(extra_body={"moshi": {"path": "x"}}), "invalid_duplex_runtime_config", "extra_body.moshi"),
        (config(extra_body={"moshi": {"top_k_text": 0}}), "invalid_duplex_runtime_config", "extra_body.moshi"),
        (config(extra_body={"moshi": {"seed": -1}}), "invalid_duplex_runtime_config", "extra_body.moshi.seed"),
        (config(extra_body={"personaplex": {}}), "invalid_duplex_runtime_config", "extra_body.personaplex"),
    ],
)
def test_moshi_refuses_by_name_what_it_cannot_do(session: SessionConfig, code: str, param: str) -> None:
    assert refusal(MOSHI, session) == (code, param)


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        (config(voice="alloy"), "unsupported", "session.voice"),
        (config(voice="../NATF0"), "unsupported", "session.voice"),
        (config(voice=""), "unsupported", "session.voice"),
        (config(instructions="x" * 4001), "unsupported", "session.instructions"),
        (
            config(extra_body={"personaplex": {"voice": "NATF0"}}),
            "invalid_duplex_runtime_config",
            "extra_body.personaplex",
        ),
    ],
)
def test_personaplex_takes_voices_of_its_list_only(session: SessionConfig, code: str, param: str) -> None:
    assert refusal(PERSONAPLEX, session) == (code, param)


def test_role_and_voice_reach_the_stage() -> None:
    assert PERSONAPLEX._options.voices == PUBLISHED and len(PUBLISHED) == 18
    usual = slot(PERSONAPLEX)
    assert usual.voice == "NATF0" and usual.prompt == "You enjoy having a good conversation."
    told = slot(PERSONAPLEX, config(voice="VARM4", instructions="You sell bread."))
    assert (told.voice, told.prompt) == ("VARM4", "You sell bread.")
    assert slot(PERSONAPLEX, config(instructions="")).prompt == "", "no role at all"
    assert slot(PersonaPlex(pipeline("personaplex", voice="NATM3"))).voice == "NATM3"
    assert slot(PersonaPlex(pipeline("personaplex", voices=[]))).voice == ""


def test_role_and_voice_are_fixed_at_open() -> None:
    before = config(voice="NATF1", instructions="You sell bread.")
    assert refusal(PERSONAPLEX, config(voice="NATF1", instructions="You sell cheese."), before) == (
        "persona_update_unsupported",
        "session.instructions",
    )
    assert refusal(PERSONAPLEX, config(voice="NATF2", instructions="You sell bread."), before) == (
        "voice_update_unsupported",
        "session.voice",
    )
    PERSONAPLEX.validate(msgspec.structs.replace(before, temperature=0.5), before)


def test_sampling_is_the_pipelines_then_the_sessions_then_extra_bodys() -> None:
    plugin = Moshi(pipeline(sampling={"top_k_text": 7}, talking={"pause_ms": 400}))
    assert slot(plugin) == SlotConfig(Sampling(top_k_text=7), Talking(pause_ms=400), None)
    told = slot(plugin, config(temperature=0.0))
    assert (told.sampling.temperature_audio, told.sampling.temperature_text) == (0.0, 0.0)
    body = {"moshi": {"temperature_text": 0.3, "top_k_audio": 9, "seed": 5}}
    told = slot(plugin, config(temperature=1.0, extra_body=body))
    assert told.sampling == Sampling(1.0, 0.3, 9, 7) and told.seed == 5


def test_the_seed_is_fixed_at_open_and_the_rest_may_change() -> None:
    before = config(extra_body={"moshi": {"seed": 5}})
    assert refusal(MOSHI, config(extra_body={"moshi": {"seed": 6}}), before)[1] == "extra_body.moshi.seed"
    MOSHI.validate(config(extra_body={"moshi": {"seed": 5, "top_k_text": 3}}), before)


@pytest.mark.parametrize(
    "name", ["instructions", "voice", "tools", "temperature", "max_output_tokens", "speed", "input"]
)
def test_options_of_one_response_are_refused_by_name(name: str) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        MOSHI.check_options({name: "x"})
    assert (refused.value.code, refused.value.param) == ("unsupported_native_response_options", f"response.{name}")
    MOSHI.check_options({name: None, "metadata": {"a": "b"}, "modalities": ["text"], "conversation": "none"})


def test_a_unit_is_its_sound_and_whether_it_silences() -> None:
    state = MOSHI.new_state(PLAIN)
    plan = MOSHI.plan_unit(state, UNIT)
    assert (plan.head, plan.frames, plan.stage) == (b"", (UNIT.pcm,), 0)
    assert MOSHI.plan_unit(state, msgspec.structs.replace(UNIT, force_listen=True)).head == FORCE_LISTEN


def test_usage_counts_frames_heard_and_said_and_pieces_of_text() -> None:
    state = MOSHI.new_state(PLAIN)
    for continuation in (False, False, True):
        MOSHI.plan_unit(state, msgspec.structs.replace(UNIT, continuation=continuation))
    for output in (
        ModelOutput(listen=True),
        ModelOutput(text="Hi", audio_rate_hz=24_000),
        ModelOutput(audio_rate_hz=24_000),
    ):
        assert MOSHI.project(state, encode_output(output), (b"",)) == (output,)
    assert MOSHI.take_usage(state) == Usage(input_audio_tokens=2, output_audio_tokens=2, output_text_tokens=1)
    assert MOSHI.take_usage(state) == Usage()
    opened = ModelOutput(listen=True, usage=Usage(input_text_tokens=12))
    assert MOSHI.project(state, encode_output(opened), ()) == (ModelOutput(listen=True),)
    assert MOSHI.take_usage(state) == Usage(input_text_tokens=12), "the role, with the response that comes next"


def test_capabilities_say_what_is_enforced() -> None:
    told = PERSONAPLEX.capabilities(4)
    assert told.implementation_level == "model_native_duplex" and told.chunk_period_ms == 80
    assert told.supports_barge_in and told.supports_multi_session
    assert not told.supports_text_only_turn and not told.supports_function_calls and not told.supports_image_input
    assert (told.required_input_modalities, told.optional_input_modalities) == (("audio",), ())
    assert not PERSONAPLEX.capabilities(1).supports_multi_session


def test_nothing_of_a_pipeline_names_a_file_of_this_machine() -> None:
    for name in ("moshi", "personaplex"):
        options = find_pipeline(name).options
        assert not Path(options["checkpoint"]).is_absolute() and options["checkpoint"].count("/") == 1
