"""Who is let in: sequences and blocks, counted before vLLM would stall."""

from __future__ import annotations

import pytest

from duologue.models.vllm_stream.admission import Admission, NoRoom

pytestmark = pytest.mark.unit


def test_sequences_are_counted_and_given_back() -> None:
    admission = Admission(2, 100_000, 16)
    admission.take("a", 100)
    admission.take("b", 100)
    with pytest.raises(NoRoom, match="all 2 sequences"):
        admission.take("c", 100)
    admission.give("a")
    admission.give("a")
    admission.take("c", 100)
    assert admission.held_tokens == 2 * 112


def test_contexts_are_set_aside_in_whole_blocks() -> None:
    admission = Admission(9, 10 * 128, 128)  # nine blocks of its own: one stands for nothing
    assert admission.pool_tokens == 9 * 128
    assert admission.fits(300) == 3
    for who in range(3):
        admission.take(who, 300)
    with pytest.raises(NoRoom, match="holds 1152 tokens, 1152 are set aside, and 128 are needed"):
        admission.take("one more", 1)
    assert admission.held_tokens == 9 * 128, "a refusal holds nothing"


def test_a_context_that_never_fits() -> None:
    admission = Admission(4, 1024, 128)
    assert admission.fits(1024) == 0
    with pytest.raises(NoRoom):
        admission.take("a", 1024)


def test_a_place_is_taken_once() -> None:
    admission = Admission(4, 1024, 128)
    admission.take("a", 1)
    with pytest.raises(ValueError, match="a has a place"):
        admission.take("a", 1)
