"""The conversation, its bounds, and sound files."""

from __future__ import annotations

import base64

import pytest

from duologue.models.qwen3_omni.options import Options
from duologue.models.qwen3_omni.sounds import read_sound, write_wav
from duologue.models.qwen3_omni.talk import NO_RESULT, Called, Talk, heard_of, messages

pytestmark = pytest.mark.unit

SECOND = bytes(32_000)


def talk(**bounds: float) -> Talk:
    return Talk(Options(url="http://h/v1", **bounds))  # type: ignore[arg-type]


def test_the_oldest_turns_go_and_it_is_told() -> None:
    kept = talk(history_turns=2)
    assert kept.said("one")
    assert kept.said("two")
    assert not kept.said("three")
    assert [turn.text for turn in kept.turns()] == ["two", "three"]


def test_the_sound_of_all_turns_is_bounded_and_the_newest_stays() -> None:
    kept = talk(history_audio_s=2.5, turn_audio_s=2.5)
    for _ in range(2):
        kept.hear(SECOND)
        assert kept.end_turn()
    kept.hear(SECOND)
    kept.hear(SECOND)
    assert not kept.end_turn()
    assert [len(turn.sound) for turn in kept.turns()] == [64_000]


def test_of_a_turn_that_is_too_long_the_end_is_kept() -> None:
    kept = talk(turn_audio_s=1)
    assert kept.hear(b"\1\0" * 16_000)
    assert not kept.hear(b"\2\0" * 8000)
    kept.end_turn()
    assert kept.turns()[0].sound == b"\1\0" * 8000 + b"\2\0" * 8000


def test_an_answer_of_which_nothing_was_heard_is_not_in_it() -> None:
    kept = talk()
    kept.said("never heard")
    kept.cut("")
    assert kept.turns() == ()


def test_every_call_is_followed_by_its_result_or_a_word() -> None:
    kept = talk()
    kept.said("wait", (Called("a", "f", "{}"), Called("b", "g", "{}")))
    kept.item({"type": "function_call_output", "call_id": "b", "output": "2"})
    told = messages("", kept.turns(), kept.results())
    assert [(one["role"], one["content"]) for one in told] == [
        ("assistant", "wait"),
        ("tool", NO_RESULT),
        ("tool", "2"),
    ]


def test_what_one_says_in_a_row_is_one_message() -> None:
    kept = talk()
    image = {"type": "input_image", "image_url": "data:image/png;base64,x"}
    kept.item({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "this"}, image]})
    kept.hear(b"\1\0")
    kept.end_turn()
    (user,) = messages("", kept.turns(), {})
    assert [part["type"] for part in user["content"]] == ["image_url", "text", "input_audio"]
    assert base64.b64decode(user["content"][2]["input_audio"]["data"]) == write_wav(b"\1\0", 16_000)


@pytest.mark.parametrize(
    ("sound_ms", "heard_ms", "kept"),
    [(2000, 2000, "one two three four"), (2000, 1000, "one two"), (2000, 0, ""), (0, 585, "one two")],
    ids=["all", "half", "nothing", "no sound yet"],
)
def test_what_was_heard_is_cut_at_a_word(sound_ms: float, heard_ms: float, kept: str) -> None:
    assert heard_of("one two three four", sound_ms, heard_ms) == kept


def test_sound_files_are_read_and_their_sizes_not_believed() -> None:
    pcm = b"\1\0\2\0"
    assert read_sound(write_wav(pcm, 22_050), 24_000) == (pcm, 22_050)
    streamed = bytearray(write_wav(pcm, 24_000))
    streamed[40:44] = b"\xff\xff\xff\xff"
    assert read_sound(bytes(streamed), 24_000) == (pcm, 24_000)
    assert read_sound(pcm, 24_000) == (pcm, 24_000)


@pytest.mark.parametrize("at", [22, 34, 20])
def test_sound_that_is_not_mono_16_bit_is_refused(at: int) -> None:
    wrong = bytearray(write_wav(b"\1\0", 24_000))
    wrong[at] = 8
    with pytest.raises(ValueError, match="mono"):
        read_sound(bytes(wrong), 24_000)
