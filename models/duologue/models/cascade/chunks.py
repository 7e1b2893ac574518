"""A spoken clause in pieces, each with the words that are said in it. Pure, times in samples and ms."""

from __future__ import annotations

import re

import msgspec

from duologue.model.outputs import TextMark
from duologue.models.cascade.settings import VOICE_RATE_HZ

_PER_MS = VOICE_RATE_HZ // 1000
MIN_CHUNK_MS = 60
_WORD = re.compile(r"\S+")
_PAUSE_CHARS = {",": 3, ";": 3, ":": 3, ".": 4, "!": 4, "?": 4}
"""How many letters' time a mark inside a clause takes."""


class Spoken(msgspec.Struct, frozen=True, gc=False):
    """`pcm`: int16 at 24 kHz. `words`: for each word, the characters of the text up to its end, and the
    sample at which it has been said."""

    pcm: bytes
    words: tuple[tuple[int, int], ...]

    @property
    def samples(self) -> int:
        return len(self.pcm) // 2


class Chunk(msgspec.Struct, frozen=True, gc=False):
    text: str
    pcm: bytes
    marks: tuple[TextMark, ...]


def word_ends(text: str, begin: int, end: int) -> list[tuple[int, int]]:
    """Estimated from the letters: (characters up to the end of the word, sample)."""
    words = list(_WORD.finditer(text))
    weights = [_weight(word.group()) for word in words]
    if weights:
        weights[-1] -= _PAUSE_CHARS.get(words[-1].group()[-1], 0)  # that pause lies behind `end`
    total = sum(weights) or 1
    ends, done = [], 0
    for word, weight in zip(words, weights, strict=True):
        done += weight
        ends.append((word.end(), begin + (end - begin) * done // total))
    return ends


def _weight(word: str) -> int:
    return max(2, sum(c.isalnum() for c in word)) + 1 + _PAUSE_CHARS.get(word[-1], 0)


def chunks(text: str, spoken: Spoken, chunk_ms: int) -> list[Chunk]:
    """A clause in pieces of about `chunk_ms`, each with the words that end in it. No text is left out."""
    size = chunk_ms * _PER_MS
    pieces = []
    start, char, word = 0, 0, 0
    while start < spoken.samples:
        end = start + size
        if spoken.samples - end < MIN_CHUNK_MS * _PER_MS:
            end = spoken.samples
        marks, first = [], char
        while word < len(spoken.words) and (spoken.words[word][1] <= end or end == spoken.samples):
            char, said = spoken.words[word]
            marks.append(TextMark(char - first, (min(said, end) - start) / _PER_MS))
            word += 1
        if end == spoken.samples:
            char = len(text)
            marks = _close_marks(marks, char - first)
        pieces.append(Chunk(text[first:char], spoken.pcm[2 * start : 2 * end], tuple(marks)))
        start = end
    return pieces


def _close_marks(marks: list[TextMark], chars: int) -> list[TextMark]:
    """What follows the last word (a quotation mark, a space) goes with it."""
    if marks and marks[-1].text_chars < chars:
        marks[-1] = TextMark(chars, marks[-1].audio_ms)
    return marks


def halves(chunk: Chunk) -> tuple[Chunk | None, Chunk]:
    """Cut a chunk in the middle; (None, chunk) if it is too short for that."""
    samples = len(chunk.pcm) // 2
    if samples < 2 * MIN_CHUNK_MS * _PER_MS:
        return None, chunk
    cut = samples // 2
    cut_ms = cut / _PER_MS
    early = tuple(mark for mark in chunk.marks if mark.audio_ms <= cut_ms)
    chars = early[-1].text_chars if early else 0
    late = tuple(TextMark(m.text_chars - chars, m.audio_ms - cut_ms) for m in chunk.marks[len(early) :])
    return (
        Chunk(chunk.text[:chars], chunk.pcm[: 2 * cut], early),
        Chunk(chunk.text[chars:], chunk.pcm[2 * cut :], late),
    )
