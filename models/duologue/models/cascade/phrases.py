"""What a few words said over an answer mean: a back-channel, an interruption, or nothing.

Pure. Spellings are those that a recogniser writes for the same sounds.
"""

from __future__ import annotations

import re
from enum import Enum


class Kind(Enum):
    EMPTY = "empty"
    BACK_CHANNEL = "back_channel"
    URGENT = "urgent"
    """Words that take the floor, however short."""
    WORDS = "words"


_HUM = re.compile(r"(?:m+h*m*|m+-?h+u?h?m*|h+m+|hm+-?m+|u+h+-?h+u+h+|u+h+|u+m+|a+h+|a+-?h+a+|o+h+|e+r+m*|e+h+)")
_WORD = re.compile(r"[a-z0-9]+(?:['-][a-z0-9]+)*")

_SINGLE = frozenset(
    "okay ok kay right alright yeah yep yup yes ya yea sure true exactly indeed absolutely definitely "
    "certainly totally agreed correct cool nice great good wow really fine perfect interesting gotcha huh "
    "hum aha mhm mhmm mmhm mmhmm uhhuh yay amen well oh ah".split()
)
_PHRASES = tuple(
    tuple(phrase.split())
    for phrase in (
        "i see|i understand|i know|got it|i got it|got you|of course|all right|that's right|that is right|"
        "makes sense|that makes sense|for sure|no way|sounds good|very good|very nice|go on|uh huh|mm hm|"
        "mm hmm|mm huh|m hm|m hmm|oh really|is that so|fair enough|no problem|you're right|that's true|"
        "that's good|that's great|that's interesting"
    ).split("|")
)
_URGENT = frozenset(
    "stop stopped wait hold hang pause quiet silence enough cancel no nope shush shut listen excuse "
    "actually but what why who when where how which never hey help sorry".split()
)
_URGENT_WITHIN = 3
"""A word that takes the floor stands among the first of what is said."""

_TRAILING = frozenset(
    "and but or so because the a an of to for with from in on at by if that which who when while as than "
    "like my your his her their our is are was were um uh er".split()
)


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("’", "'"))


def classify(text: str) -> Kind:
    """What this is when it is said over an answer."""
    words = words_of(text)
    if not words:
        return Kind.EMPTY
    if _is_back_channel(words):
        return Kind.BACK_CHANNEL
    if any(word in _URGENT for word in words[:_URGENT_WITHIN]):
        return Kind.URGENT
    return Kind.WORDS


def sounds_finished(text: str) -> bool:
    """Whether the words themselves look like a whole sentence: advice, no more."""
    stripped = text.rstrip(" \"'”")
    if not stripped.endswith((".", "?", "!")) or stripped.endswith(("...", "…")):
        return False
    words = words_of(stripped)
    return bool(words) and words[-1] not in _TRAILING


def _is_back_channel(words: list[str]) -> bool:
    """Made of nothing but signs of listening."""
    at = 0
    while at < len(words):
        for phrase in _PHRASES:
            if tuple(words[at : at + len(phrase)]) == phrase:
                at += len(phrase)
                break
        else:
            if words[at] not in _SINGLE and not _HUM.fullmatch(words[at]):
                return False
            at += 1
    return True
