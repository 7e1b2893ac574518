"""From pieces to text: words, padding, characters that come as bytes."""

from __future__ import annotations

import pytest

from duologue.models.moshi.spelling import Speller

pytestmark = pytest.mark.unit
PIECES = ("<unk>", "<s>", "</s>", "<pad>", "▁Hel", "lo", "▁wor", "ld", "<0xC3>", "<0xA4>", "▁")


class Tokenizer:
    """As much of a sentencepiece processor as is asked."""

    def get_piece_size(self) -> int:
        return len(PIECES)

    def id_to_piece(self, token: int) -> str:
        return PIECES[token]

    def is_control(self, token: int) -> bool:
        return token in (1, 2, 3)

    def is_unknown(self, token: int) -> bool:
        return token == 0

    def is_byte(self, token: int) -> bool:
        return PIECES[token].startswith("<0x")


def spell(speller: Speller, *tokens: int) -> list[str]:
    return [speller.text(token) for token in tokens if speller.spoken(token)]


def test_padding_control_tokens_and_unknown_ids_are_not_spoken() -> None:
    speller = Speller(Tokenizer())
    assert [token for token in range(-2, 14) if speller.spoken(token)] == [4, 5, 6, 7, 8, 9, 10]


def test_a_word_begins_with_a_space_but_the_first() -> None:
    assert spell(Speller(Tokenizer()), 3, 4, 0, 5, 6, 7) == ["Hel", "lo", " wor", "ld"]


def test_a_new_utterance_begins_without_a_space() -> None:
    speller = Speller(Tokenizer())
    spell(speller, 4, 5)
    speller.start()
    assert spell(speller, 10, 6, 6) == ["", "wor", " wor"]


def test_a_character_comes_when_its_bytes_are_whole() -> None:
    assert spell(Speller(Tokenizer()), 4, 8, 9) == ["Hel", "", "ä"]


def test_a_character_that_is_broken_off_is_told_and_not_kept() -> None:
    assert spell(Speller(Tokenizer()), 4, 8, 5) == ["Hel", "", "\ufffdlo"]
    speller = Speller(Tokenizer())
    spell(speller, 4, 8)
    speller.start()
    assert spell(speller, 6) == ["wor"]
