"""What is bounded: the context, the state of speech, slots; and what is refused before anything starts."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from duologue.model.engine import Slot, StageRefused
from duologue.model.outputs import decode_output
from duologue.model.pipeline import PipelineError

if TYPE_CHECKING:
    from models.minicpmo_4_5.conftest import Make
    from models.minicpmo_4_5.rig import Rig, Session

pytestmark = pytest.mark.models


def session(seed: int = 1, units: int = 80, **more: Any) -> Session:
    from models.minicpmo_4_5.rig import Session, sound

    return Session(sound(seed, units), seed=seed, **more)


def test_a_context_rolls_over_before_it_is_full(rig: Rig) -> None:
    one = rig.open(session())
    rollover, full = rig.engine.options.rollover_tokens, rig.engine.options.context_tokens
    asked = False
    while (emission := rig.emit(one)).failure is None:
        tokens, rebind = rig.engine.usage().kv_tokens, decode_output(emission.head).rebind
        assert rebind == ("context_rollover" if tokens > rollover else "")
        asked |= bool(rebind)
        assert tokens <= full
    assert asked
    assert (emission.failure.code, emission.failure.retryable) == ("context_exhausted", True), "a rollover, at once"
    rig.close(one)
    new = rig.open(session())
    for _ in range(20):
        rig.step(new, replay=True)
    assert rig.engine.usage().kv_tokens < rollover / 2, "and then there is room"


def test_with_the_models_own_window_it_goes_on(rig: Rig) -> None:
    from duologue.models.minicpmo_4_5.options import Window

    window = Window(sliding_window_mode="basic", basic_window_high_tokens=400, basic_window_low_tokens=200)
    one = rig.open(session(window=window))
    most = 0
    for _ in range(80):
        assert not rig.step(one)[0].rebind
        most = max(most, rig.engine.usage().kv_tokens)
    assert 350 < most < 400 + 60


def test_a_turn_that_goes_on_and_on_keeps_a_bounded_talker(make_rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig(talker_tokens=256)
    one = rig.open(session())
    duplex = rig.duplex(one)
    letters, chunk_eos, speak = duplex.letters, duplex.chunk_eos, duplex.speak

    def drawn(logits: Any, n: int, *rest: Any) -> int:
        if n == 0:
            return int(speak)
        return int(chunk_eos) if n > 5 else int(letters[n])

    monkeypatch.setattr(duplex, "_drawn", drawn)
    positions = []
    for _ in range(24):
        output, frames = rig.step(one)
        assert output.text and frames and not output.end_of_turn, "what is heard goes on"
        positions.append(duplex.tts_text_start_pos)
    assert max(positions) < 256 and positions.count(0) > 2
    rig.close(one)


def test_speech_that_outgrows_its_state_begins_anew(make_rig: Make) -> None:
    rig = make_rig(speech_state_bytes_per_session=12_000)
    one = rig.open(session(units=30))
    for _ in range(30):
        rig.step(one)
    place = rig.engine._places[0]
    assert place.seat.speech_bytes <= 12_000
    assert any(frames for _, frames in one.told)
    rig.close(one)


def test_nothing_is_kept_or_written_of_what_is_said(
    rig: Rig, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The published code prints it, logs it, and keeps the hidden state of every word for as long as the session."""
    one = rig.open(session())
    caplog.set_level(logging.INFO)
    for _ in range(30):
        rig.step(one)
    assert any(output.text for output, _ in one.told)
    assert "speak" not in "".join(capfd.readouterr())
    assert not [record for record in caplog.records if "said" in record.getMessage()]
    duplex = rig.duplex(one)
    assert len(duplex.session_logs) <= 1 and len(duplex.total_hidden) <= 1, "of the last unit at most"
    duplex.decoder.generated_tokens = [1] * 10_000
    rig.step(one)
    rig.step(one)
    assert len(duplex.decoder.generated_tokens) <= 4096 + 40


def test_a_voice_that_needs_more_than_its_state_is_refused(make_rig: Make) -> None:
    rig = make_rig(speech_state_bytes_per_session=10)
    with pytest.raises(StageRefused, match="speech_state_bytes_per_session") as refused:
        rig.open(session())
    assert refused.value.code == "resource_exhausted"
    assert rig.engine.usage().slots_used == 0
    rig.open(session(speaks=False))
    rig.close_all()


def test_instructions_that_fill_the_context_are_refused(rig: Rig) -> None:
    with pytest.raises(StageRefused) as refused:
        rig.open(session(instructions="again " * 200))
    assert refused.value.code == "context_exhausted"
    assert rig.engine.usage().slots_used == 0


def test_speech_without_a_voice_is_refused(make_rig: Make) -> None:
    from models.minicpmo_4_5.rig import tone_pcm

    rig = make_rig(ref_audio="")
    with pytest.raises(StageRefused) as refused:
        rig.open(session())
    assert refused.value.code == "ref_audio_required"
    rig.open(session(speaks=False))
    rig.open(session(voice=tone_pcm(200)), 1)
    rig.close_all()


def test_slots_and_configurations_that_there_are_not(rig: Rig) -> None:
    with pytest.raises(StageRefused) as refused:
        rig.engine.open(Slot(4, 9), session().config)
    assert refused.value.code == "resource_exhausted"
    with pytest.raises(StageRefused) as refused:
        rig.engine.open(Slot(0, 9), b"\xc1")
    assert refused.value.code == "invalid_duplex_runtime_config"
    rig.engine.close(Slot(0, 9))


# -- what cannot be loaded -------------------------------------------------------------------------------


def failing(folder: Path, **options: Any) -> str:
    from models.minicpmo_4_5.tiny import pipeline_toml

    from duologue.model.catalog import find_pipeline
    from duologue.models.minicpmo_4_5.engine import build

    pipeline = find_pipeline(str(pipeline_toml(folder)))
    given = {**pipeline.options, "vocoder": "models.minicpmo_4_5.tone:Tone", **options}
    with pytest.raises(PipelineError) as error:
        build(msgspec.structs.replace(pipeline, options=given), 0).warm_up()
    return str(error.value)


def test_what_is_missing_is_named(environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from models.minicpmo_4_5.tiny import write_checkpoint

    from duologue.models.minicpmo_4_5 import checkpoint

    assert "no such folder" in failing(tmp_path, checkpoint=str(tmp_path / "nowhere"))
    assert "config.json" in failing(tmp_path)
    write_checkpoint(tmp_path)
    assert "ref_audio" in failing(tmp_path, ref_audio=str(tmp_path / "nobody.wav"))
    assert "nothing_of_this_name" in failing(tmp_path, vocoder="nothing_of_this_name:Vocoder")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "find_spec", lambda name: None if name == "hyperpyyaml" else name)
        assert "needs hyperpyyaml" in failing(tmp_path, vocoder="token2wav", device="cuda")
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text().replace("<|listen|>", "<|hear|>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("<|listen|>", "<|hear|>"))
    assert "<|listen|>" in failing(tmp_path), "the tokens of the protocol are found by name"
