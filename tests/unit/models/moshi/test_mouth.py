"""When a model that never stops making frames is speaking: begins, pauses, ends, hushes."""

from __future__ import annotations

import pytest

from duologue.models.moshi.mouth import Mouth, Said
from duologue.models.moshi.options import Talking

pytestmark = pytest.mark.unit
L, S, E = Said.LISTENING, Said.SPEAKING, Said.ENDING


def mouth(**changed: int | float) -> Mouth:
    return Mouth(Talking(**{"loudness": 0.1, "pause_ms": 240, "hush_ms": 800, **changed}))  # type: ignore[arg-type]


def run(one: Mouth, frames: str) -> list[Said]:
    """`t`: text; `l`: loud; `.`: neither."""
    return [one.frame(text=frame == "t", loudness=0.2 if frame == "l" else 0.05) for frame in frames]


def test_silence_is_listening() -> None:
    assert run(mouth(), "....") == [L] * 4


@pytest.mark.parametrize("first", ["t", "l"])
def test_text_or_loud_sound_begins_speech_and_a_pause_ends_it(first: str) -> None:
    assert run(mouth(), f".{first}...") == [L, S, S, S, E]


def test_a_shorter_pause_is_inside_what_is_said() -> None:
    assert run(mouth(), "t..t..l...") == [S, S, S, S, S, S, S, S, S, E]


def test_what_comes_after_the_end_begins_anew() -> None:
    assert run(mouth(), "t....t") == [S, S, S, E, L, S]


def test_loudness_over_one_leaves_it_to_the_text() -> None:
    assert run(mouth(loudness=9.0), "lltl") == [L, L, S, S]


def test_a_hush_lasts_until_it_pauses() -> None:
    one = mouth()
    run(one, "tt")
    one.hush()
    assert run(one, "t.t..t") == [L] * 6, "two quiet frames are no pause"
    assert run(one, "...t") == [L, L, L, S]


def test_a_hush_does_not_last_for_ever() -> None:
    one = mouth()
    run(one, "t")
    one.hush()
    assert run(one, "t" * 11) == [L] * 10 + [S]


def test_a_hush_of_a_quiet_model_changes_nothing() -> None:
    one = mouth()
    one.hush()
    assert run(one, "t") == [S]
    two = mouth()
    run(two, "t...")
    two.hush()
    assert run(two, "t") == [S]


def test_a_hush_counts_the_quiet_before_it() -> None:
    one = mouth()
    run(one, "t..")
    one.hush()
    assert run(one, ".t") == [L, S]
