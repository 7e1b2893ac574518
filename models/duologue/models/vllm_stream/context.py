"""What one session's request has in its KV cache, and what the next append must say. Pure.

Rule 1. The last token that a unit sampled was never computed: it is not in the cache. If it belongs to what was said
        it goes first in the next append; a stop token does not, as the chat's own format closes the turn.
Rule 2. All that was appended is remembered, so that a request that was lost is made again: its pieces, then the new
        one. Runs of tokens are one piece.
Rule 3. A piece that does not fit is refused before anything of it is appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Kind = Literal["tokens", "pcm", "audio_embeds", "prompt_embeds"]


class ContextFull(Exception):
    """The piece, and what is to be made behind it, do not fit into the session's context."""


class Piece(msgspec.Struct, frozen=True):
    """One append. `before` and `after` are tokens around the payload: mono float32 PCM at 16 kHz, or float32 rows of
    the model's hidden size."""

    before: tuple[int, ...] = ()
    kind: Kind = "tokens"
    payload: bytes = b""
    after: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + 8 * (len(self.before) + len(self.after))


class Context:
    """See the module. `limit`: tokens of one session."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[Piece] = []
        self._pending: tuple[int, ...] = ()
        self.tokens = 0
        """In the cache, or about to be again."""
        self.lost = False
        """The request is gone, and the cache with it."""

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self._pieces)

    def next_piece(self, piece: Piece) -> Piece:
        """With the token in front that the cache lacks."""
        return msgspec.structs.replace(piece, before=self._pending + piece.before) if self._pending else piece

    def lost_pieces(self) -> Sequence[Piece]:
        """What a new request is given first, in order. Empty unless the context was lost."""
        return tuple(self._pieces) if self.lost else ()

    def fits(self, tokens: int) -> bool:
        """So many more, with the one in front that the cache lacks."""
        return self.tokens + len(self._pending) + tokens <= self._limit

    def admit(self, tokens: int, made: int) -> None:
        """Raises ContextFull."""
        if self.tokens + tokens + made > self._limit:
            raise ContextFull(f"{self.tokens} tokens, {tokens} more and {made} to be made are over {self._limit}")

    def appended(self, piece: Piece, tokens: int, made: Sequence[int], *, keep_last: bool) -> None:
        """`piece`, as `next_piece` gave it, is in the cache with its `tokens`, and all that was made but the last."""
        self.lost = False
        self._remember(piece)
        self._remember(Piece(tuple(made[:-1])))
        self._pending = tuple(made[-1:]) if keep_last else ()
        self.tokens += tokens + max(len(made) - 1, 0)

    def lose(self) -> None:
        """The request ended. What it was in the middle of was not appended, for anybody who looks at the context."""
        self.lost = bool(self._pieces)

    def forget(self) -> None:
        """Begin with nothing."""
        self._pieces.clear()
        self._pending, self.tokens, self.lost = (), 0, False

    def _remember(self, piece: Piece) -> None:
        if piece.kind != "tokens":
            self._pieces.append(piece)
            return
        if not piece.before and not piece.after:
            return
        ids = piece.before + piece.after
        if self._pieces and self._pieces[-1].kind == "tokens":
            ids = self._pieces.pop().before + ids
        self._pieces.append(Piece(ids))
