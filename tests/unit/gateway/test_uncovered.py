"""What is kept until a checkpoint covers it."""

from __future__ import annotations

import pytest

from duologue.fence import CommandNo
from duologue.gateway.uncovered import Uncovered

pytestmark = pytest.mark.unit


def filled(limit: int = 1000) -> Uncovered:
    kept = Uncovered(limit)
    for n in range(1, 5):
        kept.keep(CommandNo(1, n), b"c" * 22, (b"a" * 50, b"b" * 50))
    return kept


def test_bytes_are_counted_and_given_back() -> None:
    kept = filled()
    assert (len(kept), kept.bytes) == (4, 1000)
    assert kept.full
    assert kept.cover(CommandNo(1, 1))
    assert not kept.full
    assert not kept.cover(CommandNo(1, 3))
    assert [command.no.n for command in kept] == [4]
    kept.cover(CommandNo(1, 9))
    assert (len(kept), kept.bytes) == (0, 0)


def test_a_later_generation_covers_an_older_one() -> None:
    kept = filled()
    kept.cover(CommandNo(2, 0))
    assert not len(kept)


def test_covering_what_is_unknown_changes_nothing() -> None:
    kept = filled()
    assert not kept.cover(CommandNo(0, 99))
    assert len(kept) == 4


def test_one_large_command_is_kept_alone() -> None:
    kept = Uncovered(100)
    assert not kept.full
    kept.keep(CommandNo(1, 1), b"", (b"x" * 10_000,))
    assert kept.full
    kept.clear()
    assert (kept.full, kept.bytes) == (False, 0)
