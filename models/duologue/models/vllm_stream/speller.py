"""Tokens into text, piece by piece, without half characters. Pure: given the tokenizer's `decode`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HALF = "\ufffd"
_PATIENCE = 8
"""Tokens after which half a character is told as it is: it will not be completed any more."""


class Speller:
    """Of one answer. Decodes a window that begins where the text was whole before, as a token's spelling may depend on
    the one before it."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._from = self._read = 0

    def feed(self, ids: Sequence[int]) -> str:
        """What can be told now."""
        self._ids += ids
        known, text = self._decode(self._ids[self._from : self._read]), self._decode(self._ids[self._from :])
        if text.endswith(_HALF) and len(self._ids) - self._read < _PATIENCE:
            return ""
        self._from, self._read = self._read, len(self._ids)
        return text[len(known) :]

    def finish(self) -> str:
        """What was held back."""
        window = self._ids[self._from :]
        return self._decode(window)[len(self._decode(self._ids[self._from : self._read])) :]
