"""From a conversation to what must be appended of it. Pure.

Rule 1. The session half tells the whole conversation each time; the cache has it up to the last answer. If it begins
        with what the cache has, only what follows is appended. Spaces do not count: what was heard is told clause by
        clause.
Rule 2. Whatever else has changed (an answer that was cut short, turns that left the context, other instructions) makes
        another conversation: the request is opened anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Turn = tuple[str, str]
"""Role and text."""
Render = Callable[[Sequence[Turn]], str]
"""The chat template's text for turns, with the answer begun behind them."""


class Held(NamedTuple):
    """What a request has read, and said behind it."""

    turns: tuple[Turn, ...]
    said: str


def follows(held: Held | None, asked: Sequence[Turn]) -> int:
    """How many of the turns asked are in the cache; 0: the conversation is another one."""
    if held is None or len(asked) <= len(held.turns):
        return 0
    size = len(held.turns)
    answer = asked[size]
    if tuple(asked[:size]) != held.turns or answer[0] != "assistant" or _words(answer[1]) != _words(held.said):
        return 0
    return size + 1


def tail(asked: Sequence[Turn], known: int, render: Render, mark: str) -> str | None:
    """What the template writes behind the last turn that is known, an answer. `mark`: what stands for that answer, and
    nowhere else. None: the template left the answer out."""
    turns = [*asked[: known - 1], (asked[known - 1][0], mark), *asked[known:]]
    _, found, rest = render(turns).rpartition(mark)
    return rest if found else None


def _words(text: str) -> list[str]:
    return text.split()
