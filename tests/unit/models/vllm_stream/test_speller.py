"""Tokens into text without half characters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from duologue.models.vllm_stream.speller import Speller

pytestmark = pytest.mark.unit


def bytewise(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


def test_a_character_is_told_when_it_is_whole() -> None:
    speller = Speller(bytewise)
    told = [speller.feed([one]) for one in "aé✓.".encode()]
    assert "".join(told) == "aé✓." and told == ["a", "", "é", "", "", "✓", "."]
    assert speller.finish() == ""


def test_half_a_character_at_the_end_is_told_as_such() -> None:
    speller = Speller(bytewise)
    assert speller.feed("✓".encode()[:2]) == ""
    assert speller.finish() == "\ufffd"


def test_what_is_never_completed_holds_nothing_back_for_long() -> None:
    speller = Speller(bytewise)
    told = "".join(speller.feed([0xE2]) for _ in range(20))
    assert len(told) >= 8


def test_spaces_between_words_are_kept() -> None:
    words = {1: "▁Hello", 2: "▁world", 3: "!"}

    def decode(ids: Sequence[int]) -> str:
        """As tokenizers do that drop the space in front of a text."""
        return "".join(words[one] for one in ids).replace("▁", " ").lstrip(" ")

    speller = Speller(decode)
    assert [speller.feed([one]) for one in (1, 2, 3)] == ["Hello", " world", "!"]
