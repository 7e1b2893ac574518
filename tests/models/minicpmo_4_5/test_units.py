"""One unit after another: windows, decisions, hard stops, frames, ends."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from models.minicpmo_4_5.conftest import Make
    from models.minicpmo_4_5.rig import Rig, Session

pytestmark = pytest.mark.models
PATIENCE_S = 20.0
FORCE_LISTEN = b"\x01"


def session(seed: int = 1, units: int = 24, **more: Any) -> Session:
    from models.minicpmo_4_5.rig import Session, sound

    return Session(sound(seed, units), seed=seed, **more)


def decide(rig: Rig, one: Session, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """From now on the model wants these tokens, in this order, and then what it wants by itself. A random model never
    chooses to listen or to speak on its own."""
    duplex = rig.duplex(one)
    wanted = [duplex.tokenizer.convert_tokens_to_ids(name) for name in names]
    own = duplex._drawn

    def drawn(*arguments: Any) -> int:
        return int(wanted.pop(0)) if wanted else int(own(*arguments))

    monkeypatch.setattr(duplex, "_drawn", drawn)


def until_it_speaks(rig: Rig, one: Session) -> None:
    """Up to a turn that goes on."""
    while not rig.duplex(one).tts_text_start_pos:
        rig.step(one)


def test_the_first_window_is_longer_and_begins_with_silence(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    one = rig.open(session())
    duplex, given = rig.duplex(one), list[np.ndarray]()
    own = duplex.streaming_prefill

    def prefill(audio_waveform: Any, frame_list: Any = None, max_slice_nums: int = 1) -> Any:
        given.append(audio_waveform)
        return own(audio_waveform, frame_list, max_slice_nums)

    monkeypatch.setattr(duplex, "streaming_prefill", prefill)
    for _ in range(3):
        rig.step(one)
    assert [len(sound) for sound in given] == duplex.windows == [16560, 16000, 16000]
    assert not given[0][:560].any() and np.array_equal(given[0][560:], one.units[0])


def test_a_second_of_zeros_is_no_sound(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    one = rig.open(session())
    decide(rig, one, monkeypatch, "<|listen|>", "<|speak|>", "<|chunk_eos|>")
    output, frames = rig.step(one)
    assert output.listen and not frames and not output.audio_rate_hz
    output, frames = rig.step(one)
    assert not output.listen and not output.text and len(frames) == 1, "it opens its mouth"
    assert output.audio_rate_hz == 24000 and len(frames[0]) % 2 == 0


def test_a_model_that_only_writes_is_heard_by_nobody(rig: Rig) -> None:
    one = rig.open(session(speaks=False))
    told = [rig.step(one) for _ in range(16)]
    assert any(output.text for output, _ in told)
    assert not any(frames or output.audio_rate_hz for output, frames in told)


def test_a_pipeline_without_a_vocoder_writes(make_rig: Make) -> None:
    rig = make_rig(vocoder="none", ref_audio="")
    one = rig.open(session(speaks=False))
    told = [rig.step(one) for _ in range(16)]
    assert any(output.text for output, _ in told) and not any(frames for _, frames in told)
    rig.close(one)


def test_the_end_of_a_turn_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    one = rig.open(session())
    decide(rig, one, monkeypatch, "<|speak|>", "a", "b", "<|turn_eos|>", "<|chunk_eos|>")
    output, frames = rig.step(one)
    assert (output.text, output.end_of_turn) == ("ab", True) and frames
    assert not rig.duplex(one).tts_text_start_pos, "the talker is at its beginning"


def test_a_turn_that_ends_in_a_unit_of_listening_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remote code says `is_listen` there, and not that the turn is over."""
    one = rig.open(session())
    decide(rig, one, monkeypatch, "<|speak|>", "a", "<|chunk_eos|>", "<|turn_eos|>", "<|listen|>")
    assert not rig.step(one)[0].end_of_turn
    output, frames = rig.step(one)
    assert (output.listen, output.end_of_turn, frames) == (False, True, ())


def test_it_may_not_listen_in_the_middle_of_a_turn(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    one = rig.open(session())
    decide(rig, one, monkeypatch, "<|speak|>", "a", "<|chunk_eos|>", "<|listen|>", "b", "<|chunk_eos|>")
    rig.step(one)
    output, _ = rig.step(one)
    assert not output.listen and output.text == "b"


def test_each_parameter_of_a_draw_is_passed(rig: Rig) -> None:
    from models.minicpmo_4_5.rig import GREEDY

    from duologue.models.minicpmo_4_5.wire import SlotConfig, encode_config

    one = rig.open(session())
    rig.step(one)
    assert one.slot is not None
    rig.engine.control(one.slot, "update", encode_config(SlotConfig(sampling=GREEDY)))
    rig.step(one, FORCE_LISTEN)
    calls = rig.duplex(one).calls[-2:]
    assert calls == [
        {"listen": False, "mode": "sampling", "temperature": 0.9},
        {"listen": True, "mode": "greedy", "temperature": 1.0},
    ]


def test_a_hard_stop_closes_the_turn_and_keeps_what_was_heard(rig: Rig) -> None:
    one = rig.open(session())
    until_it_speaks(rig, one)
    duplex, before = rig.duplex(one), rig.engine.usage().kv_tokens
    assert one.slot is not None and not duplex.current_turn_ended
    rig.engine.cancel(one.slot, 1)
    output, frames = rig.step(one)
    assert output.listen and not frames and not output.end_of_turn, "nothing is open any more"
    assert duplex.current_turn_ended and duplex.tts_past_key_values is None and not duplex.tts_text_start_pos
    assert rig.engine.usage().kv_tokens > before, "the context goes on"
    assert not duplex.calls[-2]["listen"] and duplex.calls[-1]["listen"]
    rig.step(one)
    assert not duplex.calls[-1]["listen"], "it is free to answer again"


def test_a_hard_stop_of_nothing_stops_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    one = rig.open(session())
    decide(rig, one, monkeypatch, "<|listen|>", "<|speak|>", "a", "<|chunk_eos|>")
    rig.step(one)
    assert one.slot is not None
    rig.engine.cancel(one.slot, 1)
    assert rig.step(one)[0].text == "a"


def test_a_unit_that_is_listened_to_ends_what_was_being_said(rig: Rig) -> None:
    one = rig.open(session())
    until_it_speaks(rig, one)
    output, frames = rig.step(one, FORCE_LISTEN)
    assert output.end_of_turn and not output.text and not frames
    assert rig.step(one, FORCE_LISTEN)[0].listen


def test_a_replay_is_heard_and_answers_nothing(rig: Rig) -> None:
    one = rig.open(session())
    for _ in range(10):
        output, frames = rig.step(one, replay=True)
        assert not (frames or output.text or output.listen or output.end_of_turn)
    assert rig.engine.usage().kv_tokens > 10 * 12
    again = rig.open(session(), 1)
    for _ in range(10):
        rig.step(again, replay=True)
    assert rig.step(one) == rig.step(again), "the same was heard"


def test_the_end_of_a_unit_is_given_behind_its_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    one = rig.open(session())
    done = threading.Event()
    duplex = rig.duplex(one)
    own = duplex.finalize_unit
    threads = list[str]()

    def finalize() -> None:
        threads.append(threading.current_thread().name)
        own()
        done.set()

    monkeypatch.setattr(duplex, "finalize_unit", finalize)
    rig.step(one)
    assert done.wait(PATIENCE_S)
    assert threads == ["minicpmo-background"]


def test_the_end_of_a_unit_is_given_before_the_next_one_at_the_latest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = rig.alone(session(units=8))
    monkeypatch.setattr(rig.engine, "_finish_one", lambda: False)
    assert rig.alone(session(units=8)) == alone, "a prefill before it would have raised"


def test_a_unit_that_fails_half_way_costs_one_session_its_state(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = rig.open(session(1), 0), rig.open(session(2), 1)
    with monkeypatch.context() as patch:
        patch.setattr(rig.duplex(bad), "streaming_generate", lambda **named: 1 / 0)
        emission = rig.emit(bad)
    assert emission.failure is not None
    assert (emission.failure.code, emission.failure.retryable) == ("engine_error", True)
    failure = rig.emit(bad).failure
    assert failure is not None and failure.retryable, "what it holds means nothing any more"
    rig.step(good)
    rig.close(bad)
    assert rig.alone(session(2, units=4), 1) == rig.alone(session(2, units=4), 2)


@pytest.mark.parametrize("size", [0, 4, 64_004, 128_000])
def test_a_unit_of_another_size_fails_alone(rig: Rig, size: int) -> None:
    from duologue.model.engine import StageUnit

    one = rig.open(session())
    assert one.slot is not None
    [emission] = rig.engine.append_batch([StageUnit(one.slot, 0, 1, 0, 0, b"", (bytes(size),))])
    assert emission.failure is not None and emission.failure.code == "runtime_append_failed"
    rig.step(one)


# -- what is seen ----------------------------------------------------------------------------------------


def picture(color: tuple[int, int, int], kind: str = "PNG") -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (64, 48), color).save(file, kind)
    return file.getvalue()


def test_camera_frames_are_seen_with_their_unit(make_rig: Make) -> None:
    rig = make_rig(vision=True, context_tokens=8192)
    told = []
    for color in ((255, 0, 0), (0, 0, 255)):
        one = rig.open(session(units=8))
        for n in range(8):
            rig.step(one, images=[picture(color), picture(color, "JPEG")] if n == 2 else ())
        told.append(one.told)
        rig.close(one)
    assert told[0][:2] == told[1][:2], "nothing was seen yet"
    assert told[0][2:] != told[1][2:]


@pytest.mark.parametrize("frame", [b"", b"\xff\xd8\xff\xe0 and nothing more", picture, b"\x89PNG\r\n\x1a\n"])
def test_a_frame_that_cannot_be_decoded_fails_its_unit_alone(make_rig: Make, frame: Any) -> None:
    rig = make_rig(vision=True, context_tokens=8192)
    one = rig.open(session(units=4))
    broken = frame if isinstance(frame, bytes) else frame((1, 2, 3))[:60]
    failure = rig.emit(one, images=[broken]).failure
    assert failure is not None and (failure.code, failure.retryable) == ("invalid_video_frames", False)
    rig.step(one)
    rig.close(one)


def test_a_model_without_vision_is_shown_nothing(rig: Rig) -> None:
    one = rig.open(session())
    rig.step(one, images=[b"never looked at"])


# -- the other form of the code --------------------------------------------------------------------------


def test_the_code_that_returns_a_duplex_object_works_too(make_rig: Make) -> None:
    """`as_duplex`: no finalize, no suffix, no override of listening; the vocoder is loaded once all the same."""
    rig = make_rig(separate=True)
    first, second = session(1, 12), session(2, 12)
    alone = [rig.alone(first), rig.alone(second, 1)]
    rig.open(first, 0)
    rig.open(second, 1)
    for _ in range(12):
        rig.step(first)
        rig.step(second)
    assert [first.told, second.told] == alone
    rig.close_all()
    one = rig.open(session())
    until_it_speaks(rig, one)
    output, frames = rig.step(one, FORCE_LISTEN)
    assert output.end_of_turn and not frames and rig.duplex(one).current_turn_ended
    assert rig.duplex(one).model.vocoders_loaded == 0
    rig.close(one)
