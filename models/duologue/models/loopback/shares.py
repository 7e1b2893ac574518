"""How a text is shared out over the audio units that speak it. SANS-I/O.

Rule 1. Whole words in order; a word takes the spaces before it along, the last one those at the end: the
        shares put together are the text.
Rule 2. The words of one unit are spoken evenly over it, and its marks say so.
"""

from __future__ import annotations

import re

from duologue.model.outputs import TextMark

_WORDS = re.compile(r"\s*\S+(?:\s+\Z)?|\s+")


def words_of(text: str) -> tuple[str, ...]:
    """The words with their spaces; a text of spaces alone is one word."""
    return tuple(_WORDS.findall(text))


def share_of(words: tuple[str, ...], index: int, units: int, unit_ms: float) -> tuple[str, tuple[TextMark, ...]]:
    """What unit `index` of `units` says, and where in its audio each word ends."""
    count = len(words)
    # Rounded up, so that the first unit has a word if there is one.
    said = words[-(-index * count // units) : -(-(index + 1) * count // units)]
    if not said:
        return "", ()
    marks, chars = [], 0
    for n, word in enumerate(said, 1):
        chars += len(word)
        marks.append(TextMark(chars, unit_ms * n / len(said)))
    return "".join(said), tuple(marks)
