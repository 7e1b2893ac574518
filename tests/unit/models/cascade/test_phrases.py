"""Which words over an answer are a sign of listening, and which take the floor."""

from __future__ import annotations

import pytest

from duologue.models.cascade.phrases import Kind, classify, sounds_finished

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "text",
    [
        "Mm-hm.",
        "Mm-hmm.",
        "mhm",
        "Mmm.",
        "Hm-mm.",
        "Uh-huh.",
        "Uh huh",
        "Aha.",
        "Right.",
        "Right, right.",
        "Okay.",
        "OK, okay.",
        "Yeah, yeah.",
        "I see.",
        "Oh, I see!",
        "That’s right.",
        "All right, got it.",
        "Of course.",
    ],
)
def test_signs_of_listening(text: str) -> None:
    assert classify(text) is Kind.BACK_CHANNEL


@pytest.mark.parametrize("text", ["Stop.", "Stop wait.", "Wait, stop!", "No, hold on.", "Okay, stop.", "But why?"])
def test_words_that_take_the_floor(text: str) -> None:
    assert classify(text) is Kind.URGENT


@pytest.mark.parametrize("text", ["Right turn ahead", "Okay so tell me about London", "I see a lighthouse", "London."])
def test_words(text: str) -> None:
    assert classify(text) is Kind.WORDS


@pytest.mark.parametrize("text", ["", " . ", "..."])
def test_nothing(text: str) -> None:
    assert classify(text) is Kind.EMPTY


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("What is the capital of France?", True),
        ("Tell me a story.", True),
        ("What is the capital of...", False),
        ("What is the capital of", False),
        ("I went there and.", False),
        ("", False),
    ],
)
def test_sounds_finished(text: str, finished: bool) -> None:
    assert sounds_finished(text) is finished
