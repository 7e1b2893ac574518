"""The session half: what it refuses, what it submits, what it drops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duologue.hearing import parts as hearing
from duologue.model.outputs import ModelOutput, UserTurn, encode_output
from duologue.model.pipeline import PipelineError, PipelineSpec, load_pipeline, resolve
from duologue.model.plugin import InputUnit, ResponseRequest
from duologue.models.cascade import parts, plugin
from duologue.models.cascade.plugin import Cascade
from duologue.models.cascade.wire import Ask, SlotConfig, Told, UnitHead
from duologue.protocol.duplex import ContentPart, Item, RealtimeProtocolError, SessionConfig

pytestmark = pytest.mark.unit
TOML = Path(str(plugin.__file__)).parent / "cascade.toml"
CONFIG = SessionConfig(model="cascade", auto_response=True)
HELLO = Item(id="1", role="user", content=(ContentPart(type="input_text", text="Hello."),))


def pipeline(**options: Any) -> PipelineSpec:
    return msgspec.structs.replace(load_pipeline(TOML), options=options)


def ask_of(cascade: Cascade, config: SessionConfig = CONFIG, **options: Any) -> Ask:
    plan = cascade.plan_response(cascade.new_state(config), ResponseRequest((HELLO,), None, 1, 0, options, config))
    assert plan.stage == 2
    return msgspec.msgpack.decode(plan.head, type=Ask)


def test_the_toml_names_this_plugin_and_two_workers() -> None:
    spec = load_pipeline(TOML)
    assert resolve(spec.plugin) is Cascade
    assert spec.workers == ("cascade-ears", "cascade-voice")
    assert [len(spec.stages_of(worker)) for worker in spec.workers] == [2, 2]


def test_no_engine_library_is_imported() -> None:
    code = (
        "import sys, duologue.models.cascade.plugin, duologue.models.cascade.parts\n"
        "bad = {'onnxruntime', 'ctranslate2', 'tokenizers', 'xllamacpp', 'hibari', 'httpx', 'soxr'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"colour": "red"}, "colour"),
        ({"thinker": {"url": "example.org/v1"}}, "thinker.url"),
        ({"thinker": {"url": "http://example.org/v1"}}, "thinker.model"),
        ({"perception": {"threshold": 2}}, "perception.threshold"),
        ({"turns": {"hard_ms": 10}}, "hard_ms"),
        ({"speech": {"voice": "bella"}}, "voice"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        Cascade(pipeline(**options))


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"extra_body": {"loopback": {}}}, "extra_body.loopback"),
        ({"tools": ({"type": "function", "name": "f"},)}, "tools"),
        ({"ref_audio": "x"}, "ref_audio"),
    ],
)
def test_what_it_cannot_do_is_refused_at_open(config: dict[str, Any], param: str) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        Cascade(pipeline()).validate(msgspec.structs.replace(CONFIG, **config), None)
    assert refused.value.param == param


def test_a_voice_of_a_stock_client_is_no_error() -> None:
    Cascade(pipeline()).validate(msgspec.structs.replace(CONFIG, voice="alloy", tools=()), None)


@pytest.mark.parametrize("name", ["voice", "tools", "prompt", "extra_body"])
def test_what_a_response_cannot_have_is_refused_by_name(name: str) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        Cascade(pipeline()).check_options({name: 7})
    assert refused.value.code == "unsupported_native_response_options"
    assert refused.value.param == f"response.{name}"


def test_the_rest_of_a_response_is_accepted() -> None:
    options = {"temperature": 0.5, "max_output_tokens": 9, "modalities": ("text",), "metadata": {}, "speed": 1.2}
    Cascade(pipeline()).check_options(options)


def test_options_win_over_the_session_and_that_over_the_toml() -> None:
    cascade = Cascade(pipeline(thinker={"max_tokens": 50, "temperature": 0.1}))
    config = msgspec.structs.replace(CONFIG, temperature=0.2, max_output_tokens=40)
    assert (ask_of(cascade).max_tokens, ask_of(cascade).temperature) == (50, 0.1)
    assert (ask_of(cascade, config).max_tokens, ask_of(cascade, config).temperature) == (40, 0.2)
    ask = ask_of(cascade, config, temperature=0.0, max_output_tokens=30, speed=1.5)
    assert (ask.max_tokens, ask.temperature, ask.speed) == (30, 0.0, 1.5)
    assert ask_of(cascade, max_output_tokens=5000).max_tokens == 50


def test_instructions_are_the_system_prompt() -> None:
    cascade = Cascade(pipeline(thinker={"instructions": "Be nice."}))
    assert ask_of(cascade).messages[0].content == "Be nice."
    plan = cascade.plan_response(cascade.new_state(CONFIG), ResponseRequest((HELLO,), "Be rude.", 1, 0))
    assert msgspec.msgpack.decode(plan.head, type=Ask).messages[0].content == "Be rude."


def test_a_user_turn_is_taken_once() -> None:
    cascade = Cascade(pipeline())
    state = cascade.new_state(CONFIG)
    unit = InputUnit(b"", 1, 0, 320, True, response_open=True)

    def told(number: int) -> bytes:
        turn = UserTurn("Hello.", 0, 100)
        return encode_output(ModelOutput(user_turn=turn, state=msgspec.msgpack.encode(Told(number))))

    assert [output.user_turn for output in cascade.project(state, told(1), ())] == [UserTurn("Hello.", 0, 100)]
    assert cascade.project(state, told(1), ()) == ()
    assert len(cascade.project(state, told(2), ())) == 1
    head = msgspec.msgpack.decode(cascade.plan_unit(state, unit).head, type=UnitHead)
    assert (head.turns_heard, head.start_ms, head.response_open) == (2, 320, True)
    config = msgspec.msgpack.decode(cascade.stage_configs(CONFIG, state)[1], type=SlotConfig)
    assert config.turns_heard == 2


def test_other_results_pass() -> None:
    cascade = Cascade(pipeline())
    output = ModelOutput(text="Hi", audio_rate_hz=24_000)
    assert cascade.project(cascade.new_state(CONFIG), encode_output(output), (b"",)) == (output,)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (parts, hearing):
        monkeypatch.setattr(room, "find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r"hibari-tts.*extra `cascade`.*options\.speech\.model_path"):
        parts.locate(parts.VOICE, "")
    with pytest.raises(PipelineError, match="'xllamacpp'.*extra `cascade`"):
        parts.need_runtime("xllamacpp")
    assert len(parts.missing_parts()) == len(parts.RUNTIMES) + len(parts.PARTS)


def test_a_path_that_is_not_there_is_named() -> None:
    with pytest.raises(PipelineError, match=r"options\.recognition\.model_path.*/no/such/folder"):
        parts.locate(parts.RECOGNITION, "/no/such/folder")
