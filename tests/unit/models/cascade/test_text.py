"""What is spoken is what is printed: cutting, cleaning, marks, and the conversation within its context."""

from __future__ import annotations

import pytest

from duologue.models.cascade.chat import chat_turns, estimated_tokens, within
from duologue.models.cascade.chunks import Spoken, chunks, halves, word_ends
from duologue.models.cascade.clauses import FIRST_MAX_CHARS, ClauseCutter, spoken
from duologue.models.cascade.wire import Ask, ChatTurn
from duologue.protocol.duplex import ContentPart, Item

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("**Paris** is `big`.", "Paris is big."),
        ("# Heading\n- one\n- two", "Heading one two"),
        ("1. First\n2. Second", "First Second"),
        ("Hello 😀 there ✨!", "Hello there !"),
        ("See [the page](https://example.org) now.", "See the page now."),
        ("Look at https://example.org/x.", "Look at"),
        ("***", ""),
        ("3 × 4 = 12, or 5 %.", "3 × 4 = 12, or 5 %."),
        ("It’s café time.", "It’s café time."),
    ],
)
def test_spoken(written: str, said: str) -> None:
    assert spoken(written) == said


def cut(text: str, max_sentences: int = 9, step: int = 3, *, complete: bool = True) -> list[str]:
    cutter = ClauseCutter(max_sentences)
    pieces = [p for i in range(0, len(text), step) for p in cutter.feed(text[i : i + step])]
    return pieces + cutter.finish(complete=complete)


@pytest.mark.parametrize("step", [1, 3, 7, 500])
def test_a_clause_and_then_sentences(step: int) -> None:
    text = "The capital of France is Paris, of course. It has many museums, parks and cafés. Go there!"
    assert cut(text, step=step) == [
        "The capital of France is Paris,",
        " of course.",
        " It has many museums, parks and cafés.",
        " Go there!",
    ]


def test_points_that_end_nothing() -> None:
    assert cut("Dr. Smith paid 3.50 to J. Doe, e.g. for tea. Then he left.") == [
        "Dr. Smith paid 3.50 to J. Doe,",
        " e.g. for tea.",
        " Then he left.",
    ]


def test_enough_is_enough() -> None:
    assert cut("One is here. Two is here. Three is here.", 2) == ["One is here.", " Two is here."]


def test_an_unfinished_sentence_is_left_out() -> None:
    assert cut("One is here. And two is", complete=False) == ["One is here."]
    assert cut("One is here. And two is", complete=True) == ["One is here.", " And two is"]
    assert cut("And two is", complete=False) == ["And two is"]


def test_long_text_without_a_mark_is_cut_between_words() -> None:
    text = "word " * 60
    pieces = cut(text)
    assert len(pieces[0]) <= FIRST_MAX_CHARS
    assert "".join(pieces) == text.strip()


def test_nothing_to_say() -> None:
    assert cut("  \n ** \n") == []


# -- chunks ---------------------------------------------------------------------------------------------------

TEXT = " It has many museums, parks and cafés."


def made(ms: int) -> Spoken:
    samples = ms * 24
    return Spoken(bytes(2 * samples), tuple(word_ends(TEXT, 720, samples - 6240)))


def test_words_end_in_order_and_the_last_with_the_voice() -> None:
    ends = word_ends(TEXT, 720, 40_000)
    assert [TEXT[:chars].split()[-1] for chars, _ in ends] == TEXT.split()
    assert [at for _, at in ends] == sorted(at for _, at in ends)
    assert ends[-1] == (len(TEXT), 40_000)


@pytest.mark.parametrize("ms", [90, 330, 700, 2500, 2570])
def test_chunks_lose_nothing_and_mark_every_word(ms: int) -> None:
    whole = made(ms) if ms > 400 else Spoken(bytes(48 * ms), ((len(TEXT), 24 * ms // 2),))
    pieces = chunks(TEXT, whole, 320)
    assert "".join(piece.text for piece in pieces) == TEXT
    assert b"".join(piece.pcm for piece in pieces) == whole.pcm
    chars, before = 0, 0.0
    for piece in pieces:
        length = len(piece.pcm) / 48
        assert all(0 <= mark.audio_ms <= length for mark in piece.marks)
        if piece.text:
            assert piece.marks[-1].text_chars == len(piece.text)
        for mark in piece.marks:
            said = before + mark.audio_ms
            at = next(at for end, at in whole.words if end == chars + mark.text_chars)
            assert said == pytest.approx(at / 24)
        chars += len(piece.text)
        before += length


def test_halves() -> None:
    chunk = chunks(TEXT, made(2500), 2500)[0]
    first, rest = halves(chunk)
    assert first is not None
    assert first.text + rest.text == chunk.text
    assert first.pcm + rest.pcm == chunk.pcm
    assert first.marks[-1].text_chars == len(first.text)
    assert rest.marks[-1].text_chars == len(rest.text)
    moved = rest.marks[-1].audio_ms + len(first.pcm) / 48
    assert moved == pytest.approx(chunk.marks[-1].audio_ms)


# -- the conversation -----------------------------------------------------------------------------------------


def item(role: str, text: str) -> Item:
    return Item(id="i", role=role, content=(ContentPart(type="input_text", text=text),))


def test_items_become_turns() -> None:
    items = [item("user", "Hello."), item("user", "You there?"), item("assistant", "Yes"), item("user", " ")]
    call = Item(id="c", type="function_call", name="f", call_id="c", arguments="{}")
    assert chat_turns([*items, call]) == [ChatTurn("user", "Hello. You there?"), ChatTurn("assistant", "Yes")]


def test_the_oldest_turns_go_first() -> None:
    turns = [ChatTurn("user" if i % 2 == 0 else "assistant", f"turn {i} " + "x" * 300) for i in range(21)]
    ask = within(Ask((ChatTurn("system", "Be brief."), *turns), 100, 0.0), 600)
    assert ask.messages[0] == ChatTurn("system", "Be brief.")
    assert ask.messages[-1] == turns[-1]
    assert ask.messages[1].role == "user"
    assert ask.messages[1:] == tuple(turns[-len(ask.messages) + 1 :])
    assert sum(estimated_tokens(turn.content) for turn in ask.messages) + 100 <= 600
    assert len(ask.messages) > 2


def test_one_turn_that_is_too_long_keeps_its_end() -> None:
    ask = within(Ask((ChatTurn("system", "Be brief."), ChatTurn("user", "x" * 9000 + " why?")), 100, 0.0), 600)
    assert ask.messages[-1].content.endswith(" why?")
    assert sum(estimated_tokens(turn.content) for turn in ask.messages) + 100 <= 600
