"""From a conversation to what is appended of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from duologue.models.vllm_stream.conversation import Held, Turn, follows, tail

pytestmark = pytest.mark.unit

SYSTEM, FIRST = ("system", "Be kind."), ("user", "Hello.")
HELD = Held((SYSTEM, FIRST), " Hi there.\nHow are you?")
ANSWER, SECOND = ("assistant", "Hi there. How are you?"), ("user", "Fine.")


def render(turns: Sequence[Turn]) -> str:
    """ChatML."""
    return "".join(f"<{role}>{text}</>" for role, text in turns) + "<assistant>"


def thinking(turns: Sequence[Turn]) -> str:
    """A template that writes an answer another way as soon as others follow, and begins each with a thought."""
    last = len(turns) - 1
    written = [
        f"<{role}>{'<think/>' if n == last and role == 'assistant' else ''}{text}</>"
        for n, (role, text) in enumerate(turns)
    ]
    return "".join(written) + "<assistant><think/>"


def test_only_what_follows_the_answer_is_appended() -> None:
    asked = [SYSTEM, FIRST, ANSWER, SECOND]
    known = follows(HELD, asked)
    assert known == 3
    assert tail(asked, known, render, "MARK") == "</><user>Fine.</><assistant>"
    assert tail(asked, known, thinking, "MARK") == "</><user>Fine.</><assistant><think/>"


def test_an_answer_that_goes_on_by_itself() -> None:
    asked = [SYSTEM, FIRST, ANSWER]
    assert tail(asked, follows(HELD, asked), render, "MARK") == "</><assistant>"


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param([SYSTEM, FIRST, ("assistant", "Hi there."), SECOND], id="cut by a barge-in"),
        pytest.param([("system", "Be rude."), FIRST, ANSWER, SECOND], id="other instructions"),
        pytest.param([SYSTEM, ANSWER, SECOND], id="the oldest turn has left"),
        pytest.param([SYSTEM, ("user", "Hello. Fine.")], id="the answer was never heard"),
        pytest.param([SYSTEM, FIRST], id="the same once more"),
        pytest.param([SYSTEM, FIRST, SECOND], id="no answer between"),
    ],
)
def test_whatever_else_changed_is_another_conversation(asked: list[Turn]) -> None:
    assert follows(HELD, asked) == 0


def test_nothing_is_held_yet() -> None:
    assert follows(None, [SYSTEM, FIRST]) == 0


def test_a_template_that_leaves_the_answer_out() -> None:
    asked = [SYSTEM, FIRST, ANSWER, SECOND]
    assert tail(asked, 3, lambda turns: "nothing of it", "MARK") is None


def test_the_mark_in_what_somebody_said_is_not_taken_for_it() -> None:
    asked = [SYSTEM, ("user", "MARK"), ANSWER, SECOND]
    assert tail(asked, 3, render, "MARK") == "</><user>Fine.</><assistant>"
