"""A language model's text, as it streams, cut into what is spoken: first a clause, then sentences. Pure.

Rule 1. What is spoken is what is printed: markup, lists and pictures are taken out before both.
Rule 2. The first piece is short, so that the answer begins soon; later ones are whole sentences.
Rule 3. A sentence that the model did not finish is left out, unless nothing else was said.
"""

from __future__ import annotations

import re
import unicodedata

FIRST_MIN_CHARS = 12
FIRST_MAX_CHARS = 90
SENTENCE_MAX_CHARS = 240

_TITLES = frozenset("mr mrs ms dr prof st jr sr vs etc e.g i.e no".split())
_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|\n+")
_BREAK = re.compile(r"[,;:](?=\s)|\s[–—-](?=\s)|—")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_URL = re.compile(r"https?://\S+")
_BULLET = re.compile(r"^\s*(?:[-*•+]|\d{1,2}[.)]|#{1,6}|>)\s+", re.MULTILINE)
_MARKS = re.compile(r"[*_`~#|<>{}\\^]+")
_SPACE = re.compile(r"\s+")


def spoken(text: str) -> str:
    """Text without what cannot be said. May be empty."""
    text = _LINK.sub(r"\1", text)
    text = _URL.sub("", text)
    text = _BULLET.sub("", text)
    text = _MARKS.sub("", text)
    text = "".join(c for c in text if unicodedata.category(c) not in ("So", "Sk", "Cs", "Co", "Cn", "Cf", "Mn"))
    text = _SPACE.sub(" ", text).strip()
    return text if any(c.isalnum() for c in text) else ""


class ClauseCutter:
    """Takes deltas, gives pieces. `sentences` counts those that were finished."""

    def __init__(self, max_sentences: int) -> None:
        self._max = max_sentences
        self._rest = ""
        self._said = False
        self.sentences = 0

    @property
    def full(self) -> bool:
        """Enough was said."""
        return self.sentences >= self._max

    def feed(self, delta: str) -> list[str]:
        """Pieces that are complete now. A piece after the first begins with a space."""
        self._rest += delta
        pieces = []
        while not self.full and (cut := self._cut()):
            head, self._rest = self._rest[:cut], self._rest[cut:]
            if piece := self._piece(head):
                pieces.append(piece)
        return pieces

    def finish(self, *, complete: bool) -> list[str]:
        """What is left when the model stopped. `complete`: by itself, not at its limit."""
        rest, self._rest = self._rest, ""
        if self.full or (not complete and self.sentences and not _END.search(rest + " ")):
            return []
        piece = self._piece(rest)
        return [piece] if piece else []

    def _piece(self, raw: str) -> str:
        text = spoken(raw)
        if not text:
            return ""
        if _END.search(raw + " "):
            self.sentences += 1
        piece = f" {text}" if self._said else text
        self._said = True
        return piece

    def _cut(self) -> int:
        """Where the next piece ends in what is there; 0: not known yet."""
        end = next((m.end() for m in _END.finditer(self._rest) if self._is_end(m)), 0)
        if not self._said:
            breaks = (m.end() for m in _BREAK.finditer(self._rest) if m.end() >= FIRST_MIN_CHARS)
            early = next(breaks, 0)
            if early and (not end or early < end):
                return early
        if end:
            return end
        longest = SENTENCE_MAX_CHARS if self._said else FIRST_MAX_CHARS
        if len(self._rest) <= longest:
            return 0
        commas = [m.end() for m in _BREAK.finditer(self._rest[:longest])]
        return commas[-1] if commas else self._rest.rfind(" ", 0, longest) + 1 or longest

    def _is_end(self, match: re.Match[str]) -> bool:
        """Not the point of an abbreviation, an initial or the number of a list."""
        if match.group().startswith("\n") or not match.group().startswith("."):
            return True
        words = self._rest[: match.start()].split()
        word = words[-1].lower().lstrip("(\"'“") if words else ""
        return not (word in _TITLES or (len(word) == 1 and word.isalpha() and word != "i") or self._numbers(word))

    def _numbers(self, word: str) -> bool:
        """ "1." at the start of a line begins an item of a list."""
        return word.isdigit() and self._rest.lstrip().startswith(word)
