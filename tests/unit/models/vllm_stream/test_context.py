"""What a request has in its cache, what its next append says, and what one that was lost is given again."""

from __future__ import annotations

import pytest

from duologue.models.vllm_stream.context import Context, ContextFull, Piece

pytestmark = pytest.mark.unit


def append(context: Context, piece: Piece, tokens: int, made: list[int], *, keep_last: bool = True) -> None:
    context.appended(context.next_piece(piece), tokens, made, keep_last=keep_last)


def test_the_last_token_that_was_made_goes_first_in_the_next_append() -> None:
    context = Context(100)
    append(context, Piece((1, 2, 3)), 3, [7, 8, 9])
    assert context.tokens == 5, "the last was never computed"
    assert context.next_piece(Piece((4,))).before == (9, 4)
    assert context.next_piece(Piece((4,), "pcm", b"x", (5,))) == Piece((9, 4), "pcm", b"x", (5,))


def test_a_stop_token_is_left_out() -> None:
    context = Context(100)
    append(context, Piece((1, 2, 3)), 3, [7, 0], keep_last=False)
    assert context.next_piece(Piece((4,))).before == (4,)


def test_what_was_lost_is_given_again_as_it_was() -> None:
    context = Context(100)
    append(context, Piece((1, 2)), 2, [7, 8])
    append(context, Piece((3,)), 2, [9], keep_last=False)
    append(context, Piece((4,), "pcm", b"sound", (5,)), 12, [6, 6])
    assert context.lost_pieces() == ()
    context.lose()
    assert context.lost_pieces() == (Piece((1, 2, 7, 8, 3)), Piece((4,), "pcm", b"sound", (5,)), Piece((6,)))
    assert context.next_piece(Piece((10,))).before == (6, 10)
    append(context, Piece((10,)), 2, [11])
    assert not context.lost and context.lost_pieces() == ()


def test_nothing_is_lost_of_nothing() -> None:
    context = Context(100)
    context.lose()
    assert not context.lost


def test_forgotten_is_empty() -> None:
    context = Context(100)
    append(context, Piece((1, 2)), 2, [7, 8])
    context.lose()
    context.forget()
    assert (context.tokens, context.lost, context.size_bytes) == (0, False, 0)
    assert context.next_piece(Piece((4,))).before == (4,)


def test_what_does_not_fit_is_refused_with_what_is_to_be_made() -> None:
    context = Context(10)
    append(context, Piece((1, 2, 3)), 3, [7, 8])
    context.admit(3, 3)
    assert context.fits(5) and not context.fits(6), "one goes in front"
    with pytest.raises(ContextFull, match="4 tokens, 3 more and 4 to be made are over 10"):
        context.admit(3, 4)


def test_sound_is_counted_in_bytes() -> None:
    context = Context(100)
    append(context, Piece((1,), "pcm", bytes(640)), 30, [7], keep_last=False)
    assert context.size_bytes == 648
