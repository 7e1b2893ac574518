"""From tokens to text, one at a time: pieces, word beginnings, and characters that come as bytes. SANS-I/O."""

from __future__ import annotations

import codecs
from typing import Any, Final

END_OF_PADDING, PADDING = 0, 3
"""Tokens that are not text, by the package's own numbers."""
_WORD: Final = "▁"


class Speller:
    """One slot's. `tokenizer` is a sentencepiece processor."""

    __slots__ = ("_bytes", "_starting", "_tokenizer")

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._starting = True

    def spoken(self, token: int) -> bool:
        """The token is text: not padding, no control token."""
        if token in (END_OF_PADDING, PADDING) or not 0 <= token < self._tokenizer.get_piece_size():
            return False
        return not (self._tokenizer.is_control(token) or self._tokenizer.is_unknown(token))

    def text(self, token: int) -> str:
        """What this token adds. Empty as long as a character is not whole."""
        piece = self._tokenizer.id_to_piece(token)
        if self._tokenizer.is_byte(token):
            text = self._bytes.decode(bytes([int(piece[1:-1], 16)]))
        else:
            text = self._bytes.decode(b"", True) + piece.replace(_WORD, " ")
            self._bytes.reset()
        if self._starting:
            text = text.lstrip(" ")
            self._starting = not text
        return text

    def start(self) -> None:
        """What comes next begins an utterance: no space before its first word."""
        self._starting = True
        self._bytes.reset()
