"""The session half of the turn model, its options, and those of the cascade's thinker on vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from duologue.model.catalog import find_pipeline
from duologue.model.pipeline import PipelineError, PipelineSpec, StageSpec
from duologue.model.plugin import InputUnit, Rebuild
from duologue.models.cascade.settings import settings_of
from duologue.models.vllm_stream import wire
from duologue.models.vllm_stream.plugin import HearingTurns
from duologue.protocol.duplex import ContentPart, Dialect, Item, RealtimeProtocolError, SessionConfig

pytestmark = pytest.mark.unit


def pipeline(**options: Any) -> PipelineSpec:
    stage = StageSpec("model", "duologue.models.vllm_stream.engine:build", "vllm")
    return PipelineSpec("turns", "-", (stage,), session_mode="turn", options={"model": "some/model", **options})


def config(**session: Any) -> SessionConfig:
    session.setdefault("extra_body", {"auto_response": False})
    return SessionConfig.open(session, dialect=Dialect.duplex, model="turns")


def unit(*, final: bool = False, continuation: bool = False) -> InputUnit:
    return InputUnit(bytes(4), 1, 0, 0, False, final=final, continuation=continuation)


def message(number: int, role: str, text: str) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    return Item(id=f"item_{number}", role=role, content=(ContentPart(type=kind, text=text),))


def test_an_answer_is_asked_for_once_behind_the_last_unit_of_a_turn() -> None:
    plugin = HearingTurns(pipeline())
    state = plugin.new_state(config())
    assert wire.decode_head(plugin.plan_unit(state, unit()).head).flags == 0
    plugin.on_turn_start(state, 1, 0)
    assert wire.decode_head(plugin.plan_unit(state, unit(final=True)).head).flags == wire.FINAL | wire.ASK
    silence = plugin.plan_unit(state, unit(continuation=True))
    assert wire.decode_head(silence.head).flags == wire.CONTINUATION and silence.frames == ()


def test_a_cancel_takes_the_question_back() -> None:
    plugin = HearingTurns(pipeline())
    state = plugin.new_state(config())
    plugin.on_turn_start(state, 1, 0)
    plugin.on_cancel(state, 1)
    assert wire.decode_head(plugin.plan_unit(state, unit(final=True)).head).flags == wire.FINAL


def test_the_newest_half_of_a_context_is_rebuilt() -> None:
    plugin = HearingTurns(pipeline(context_tokens=256, max_tokens=16))
    state = plugin.new_state(config())
    items = tuple(message(n, "assistant" if n % 2 else "user", f"{n} " + "word " * 16) for n in range(10))
    rebuild = Rebuild("history", "worker_lost", (), items, config(), 1, 0)
    told = [wire.decode_head(plan.head).item for plan in plugin.plan_rebuild(state, rebuild)]
    assert [text.text.split()[0] for text in told if text] == ["7", "8", "9"]
    assert [text.role for text in told if text] == ["assistant", "user", "assistant"]


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"extra_body": {"auto_response": True}}, "auto_response"),
        ({"tools": [{"type": "function", "name": "look"}]}, "tools"),
        ({"max_output_tokens": 3000}, "max_output_tokens"),
        ({"extra_body": {"auto_response": False, "vllm": 1}}, "extra_body.vllm"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(session: dict[str, Any], param: str) -> None:
    with pytest.raises(RealtimeProtocolError) as refused:
        HearingTurns(pipeline()).validate(config(**session), None)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"engine": {"dtyp": "float32"}}, "dtyp"),
        ({"max_tokens": 3000}, "max_tokens"),
        ({"system_format": "x"}, "system_format"),
        ({"clip_s": 31}, "clip_s"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PipelineError, match=named):
        HearingTurns(pipeline(**options))


def test_the_installed_pipelines_read() -> None:
    assert HearingTurns(find_pipeline("vllm")).traits.turn_detection
    spec = find_pipeline("cascade-vllm")
    assert settings_of(spec).thinker.context == 4096
    assert [spec.venv_of(worker) for worker in spec.workers] == ["", "vllm", ""]


@pytest.mark.parametrize("thinker", [{}, {"model_path": "x", "url": "http://x", "model": "y"}])
def test_a_thinker_on_vllm_needs_a_model_and_no_url(thinker: dict[str, Any]) -> None:
    spec = PipelineSpec("c", "-", (), options={"thinker": {"engine": "vllm", **thinker}})
    with pytest.raises(PipelineError, match=r"options\.thinker\.engine"):
        settings_of(spec)
