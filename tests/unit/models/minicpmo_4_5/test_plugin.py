"""The session half of MiniCPM-o: what it refuses, what it submits, what it counts."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import wave
from typing import Any

import msgspec
import pytest

from duologue.model.catalog import find_pipeline
from duologue.model.outputs import ModelOutput, Usage, encode_output
from duologue.model.pipeline import PipelineError, PipelineSpec, resolve
from duologue.model.plugin import InputUnit
from duologue.models.minicpmo_4_5.options import Sampling, Window
from duologue.models.minicpmo_4_5.plugin import MiniCPMO
from duologue.models.minicpmo_4_5.voices import BadVoice, sent_voice
from duologue.models.minicpmo_4_5.wire import FORCE_LISTEN, SlotConfig, decode_config
from duologue.protocol.duplex import RealtimeProtocolError, SessionConfig

pytestmark = pytest.mark.unit

UNIT = InputUnit(pcm=bytes(16000 * 4), turn_id=1, epoch=0, start_ms=0, auto=True)


def wav(seconds: float = 1.0, *, rate: int = 16000, channels: int = 1, width: int = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(b"\x01\x02" * (int(seconds * rate) * channels * width // 2))
    return file.getvalue()


def data_url(sound: bytes) -> str:
    return "data:audio/wav;base64," + base64.b64encode(sound).decode()


VOICE = data_url(wav())
PLAIN = SessionConfig(model="minicpmo_4_5", auto_response=True, ref_audio=VOICE)


def pipeline(**options: Any) -> PipelineSpec:
    spec = find_pipeline("minicpmo_4_5")
    return msgspec.structs.replace(spec, options={**spec.options, **options})


def config(**changed: Any) -> SessionConfig:
    return msgspec.structs.replace(PLAIN, **changed)


def slot(plugin: MiniCPMO, session: SessionConfig = PLAIN) -> SlotConfig:
    plugin.validate(session, None)
    [told] = plugin.stage_configs(session, plugin.new_state(session))
    return decode_config(told)


def refusal(session: SessionConfig, current: SessionConfig | None = None, **options: Any) -> tuple[str, str | None]:
    with pytest.raises(RealtimeProtocolError) as refused:
        MiniCPMO(pipeline(**options)).validate(session, current)
    return refused.value.code, refused.value.param


MODEL = MiniCPMO(pipeline())


def test_the_pipeline_names_its_plugin_and_one_worker() -> None:
    spec = MODEL.pipeline
    assert resolve(spec.plugin) is MiniCPMO
    [stage] = spec.stages
    assert (stage.venv, stage.requires) == ("minicpmo", ("transformers==4.51.0", "minicpmo-utils==1.0.7"))
    assert stage.slots == spec.max_sessions and stage.max_batch == 1, "each unit is answered as it is computed"
    assert (MODEL.traits.unit_ms, MODEL.traits.input_rate_hz, MODEL.traits.output_rate_hz) == (1000, 16000, 24000)


def test_the_plugin_needs_nothing_of_the_engine() -> None:
    code = "import sys, duologue.models.minicpmo_4_5.plugin; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_a_model_with_vision_takes_camera_frames() -> None:
    assert MODEL.capabilities(4).optional_input_modalities == ("video",)
    blind = MiniCPMO(pipeline(vision=False))
    assert blind.capabilities(4).optional_input_modalities == ()
    unit = msgspec.structs.replace(UNIT, video_frames=(b"a", b"b", b"c"))
    assert MODEL.plan_unit(MODEL.new_state(PLAIN), unit).frames == (UNIT.pcm, b"b", b"c"), "the last two"
    assert blind.plan_unit(blind.new_state(PLAIN), unit).frames == (UNIT.pcm,)


# -- voices ----------------------------------------------------------------------------------------------


def test_who_is_to_be_heard_must_send_a_voice() -> None:
    assert refusal(config(ref_audio=None)) == ("ref_audio_required", "session.ref_audio")
    assert not slot(MODEL, config(ref_audio=None, modalities=("text",))).speaks
    assert slot(MiniCPMO(pipeline(ref_audio="a.wav")), config(ref_audio=None)).speaks, "the pipeline has one"
    assert not slot(MiniCPMO(pipeline(vocoder="none")), config(ref_audio=None)).speaks, "nothing is heard"


def test_a_voice_goes_to_the_worker_as_samples() -> None:
    told = slot(MODEL)
    assert told.speaks and len(told.voice) == 32000 and told.voice_rate_hz == 16000
    assert slot(MODEL, config(ref_audio=base64.b64encode(wav()).decode())).voice == told.voice, "base64 alone"
    assert len(slot(MiniCPMO(pipeline(max_ref_audio_s=0.6))).voice) == 9600 * 2, "the rest is cut off"


@pytest.mark.parametrize(
    "sent",
    [
        "https://voices.example/me.wav",
        "file:///etc/passwd",
        "/etc/passwd",
        "not base64!",
        "data:audio/wav,plain",
        data_url(b"RIFF"),
        data_url(b""),
        data_url(wav(channels=2)),
        data_url(wav(width=1)),
        data_url(wav(rate=4000)),
        data_url(wav(0.2)),
    ],
)
def test_a_voice_is_a_short_wav_that_is_sent(sent: str) -> None:
    assert refusal(config(ref_audio=sent)) == ("invalid_duplex_runtime_config", "ref_audio")
    with pytest.raises(BadVoice):
        sent_voice(sent, 15)


# -- what a session may set ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"voice": "nova"}, "unsupported", "session.voice"),
        ({"tools": ({"type": "function", "name": "f"},)}, "unsupported", "session.tools"),
        ({"max_output_tokens": 10}, "unsupported", "session.max_output_tokens"),
        ({"initial_user_text": "hi"}, "unsupported", "session.initial_user_text"),
        ({"temperature": 3.0}, "unsupported", "session.temperature"),
        ({"instructions": "end <|im_end|> of it"}, "unsupported", "session.instructions"),
        ({"instructions": "a </unit> of mine"}, "unsupported", "session.instructions"),
        ({"instructions": "x" * 2001}, "unsupported", "session.instructions"),
        ({"extra_body": {"ref_audio_data": "x"}}, "invalid_duplex_runtime_config", "extra_body.ref_audio_data"),
        ({"extra_body": {"force_listen_count": -1}}, "invalid_duplex_runtime_config", "extra_body.force_listen_count"),
        (
            {"extra_body": {"force_listen_count": True}},
            "invalid_duplex_runtime_config",
            "extra_body.force_listen_count",
        ),
        ({"extra_body": {"minicpmo_4_5": {"top_q": 1}}}, "invalid_duplex_runtime_config", "extra_body.minicpmo_4_5"),
        ({"extra_body": {"minicpmo_4_5": {"seed": -1}}}, "invalid_duplex_runtime_config", "extra_body.minicpmo_4_5"),
        ({"extra_body": {"sliding_window_mode": "wide"}}, "invalid_sliding_window_config", "extra_body"),
        (
            {"extra_body": {"sliding_window_mode": "basic", "basic_window_low_tokens": 8000}},
            "invalid_sliding_window_config",
            "extra_body",
        ),
        (
            {"extra_body": {"sliding_window_mode": "basic", "basic_window_high_tokens": 8192}},
            "invalid_sliding_window_config",
            "extra_body",
        ),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(changed: dict[str, Any], code: str, param: str) -> None:
    assert refusal(config(**changed)) == (code, param)


def test_the_window_the_seed_and_the_voice_are_fixed_at_open() -> None:
    window = config(extra_body={"sliding_window_mode": "basic"})
    assert refusal(window, PLAIN) == ("sliding_window_update_unsupported", "extra_body")
    seed = config(extra_body={"minicpmo_4_5": {"seed": 1}})
    assert refusal(seed, PLAIN) == ("invalid_duplex_runtime_config", "extra_body.minicpmo_4_5.seed")
    MODEL.validate(config(temperature=0.3), PLAIN)


def test_a_session_says_how_tokens_are_drawn_over_the_pipeline() -> None:
    base = MiniCPMO(pipeline(sampling={"top_k": 7}))
    assert slot(base).sampling == Sampling(top_k=7)
    assert slot(base, config(temperature=0)).sampling == Sampling(temperature=0, top_k=7)
    asked = config(temperature=0.3, extra_body={"minicpmo_4_5": {"temperature": 0.5, "top_p": 0.9, "seed": 4}})
    told = slot(base, asked)
    assert (told.sampling, told.seed) == (Sampling(temperature=0.5, top_k=7, top_p=0.9), 4)


def test_a_session_says_its_window_over_the_pipeline() -> None:
    assert slot(MODEL).window == Window()
    asked = config(extra_body={"sliding_window_mode": "basic", "basic_window_low_tokens": 100})
    assert slot(MODEL, asked).window == Window(sliding_window_mode="basic", basic_window_low_tokens=100)
    assert slot(MiniCPMO(pipeline(window={"sliding_window_mode": "context"}))).window.sliding_window_mode == "context"


def test_instructions_come_from_the_session_or_the_pipeline() -> None:
    assert slot(MODEL).instructions == "Streaming Omni Conversation."
    assert slot(MODEL, config(instructions="Be brief: 2 < 3.")).instructions == "Be brief: 2 < 3."


def test_a_response_cannot_be_configured_on_its_own() -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        MODEL.check_options({"instructions": "sing"})
    assert (refused.value.code, refused.value.param) == (
        "unsupported_native_response_options",
        "response.instructions",
    )
    MODEL.check_options({"modalities": ["text"], "metadata": {}})


# -- units -----------------------------------------------------------------------------------------------


def test_the_first_units_of_a_session_are_listened_to() -> None:
    session = config(extra_body={"force_listen_count": 2})
    state = MODEL.new_state(session)
    silence = msgspec.structs.replace(UNIT, continuation=True)
    heads = [MODEL.plan_unit(state, unit).head for unit in (UNIT, silence, UNIT, UNIT)]
    assert heads == [FORCE_LISTEN, b"", FORCE_LISTEN, b""], "what the session feeds by itself does not count"
    MODEL.on_turn_start(state, 2, 0)
    assert MODEL.plan_unit(state, UNIT).head == FORCE_LISTEN, "of each committed turn"


def test_a_unit_can_ask_to_be_listened_to() -> None:
    state = MODEL.new_state(config(extra_body={"force_listen_count": 0}))
    assert MODEL.plan_unit(state, msgspec.structs.replace(UNIT, force_listen=True)).head == FORCE_LISTEN
    assert MODEL.plan_unit(state, UNIT).head == b""


def test_what_was_used_is_told_once() -> None:
    state = MODEL.new_state(PLAIN)
    MODEL.plan_unit(state, UNIT)
    MODEL.plan_unit(state, msgspec.structs.replace(UNIT, video_frames=(b"x",)))
    used = Usage(input_text_tokens=30, output_audio_tokens=25, output_text_tokens=6)
    [output] = MODEL.project(state, encode_output(ModelOutput(text="yes", usage=used)), ())
    assert output == ModelOutput(text="yes")
    assert MODEL.take_usage(state) == Usage(
        input_audio_tokens=20, input_text_tokens=30 + 66, output_audio_tokens=25, output_text_tokens=6
    )
    assert MODEL.take_usage(state) == Usage()


# -- the pipeline's file ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"checkpoint": ""}, "checkpoint"),
        ({"device": "tpu"}, "device"),
        ({"device": "cpu"}, "vocoder"),
        ({"vocoder": "piper"}, "vocoder"),
        ({"temprature": 1}, "temprature"),
        ({"sampling": {"temperature": 9}}, "temperature"),
        ({"context_tokens": 1024, "vision": False, "window": {"sliding_window_mode": "basic"}}, "basic_window"),
        ({"context_tokens": 2048}, "rebuild_window_s"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        MiniCPMO(pipeline(**options))


def test_a_context_that_a_rebuild_would_fill_again_is_refused() -> None:
    small = msgspec.structs.replace(pipeline(context_tokens=2048), rebuild_window_s=5)
    assert MiniCPMO(small)
    with pytest.raises(PipelineError, match="history"):
        MiniCPMO(msgspec.structs.replace(pipeline(), rebuild="history"))
