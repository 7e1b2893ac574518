"""Who may have a resumable request. Pure.

Rule 1. vLLM stalls in silence what does not fit: a parked request counts against `max_num_seqs` and keeps its blocks,
        and is never preempted. So the whole context of a session is set aside when it begins, in whole blocks, or it
        does not begin.
"""

from __future__ import annotations

from collections.abc import Hashable


class NoRoom(Exception):
    """There is no place for one more session; the message says of what there is too little."""


class Admission:
    """`sessions` requests at once, whose contexts fit into `pool_tokens` together."""

    def __init__(self, sessions: int, pool_tokens: int, block_tokens: int) -> None:
        self._sessions, self._block = sessions, block_tokens
        # One block is vLLM's own: the one that stands for nothing.
        self._pool = max(pool_tokens // block_tokens - 1, 0) * block_tokens
        self._held: dict[Hashable, int] = {}

    @property
    def held_tokens(self) -> int:
        return sum(self._held.values())

    @property
    def pool_tokens(self) -> int:
        return self._pool

    def fits(self, context_tokens: int) -> int:
        """How many sessions with such a context there may be."""
        return min(self._sessions, self._pool // self._blocks(context_tokens))

    def take(self, who: Hashable, context_tokens: int) -> None:
        """Raises NoRoom, and nothing is held."""
        if who in self._held:
            raise ValueError(f"{who} has a place already")
        if len(self._held) >= self._sessions:
            raise NoRoom(f"all {self._sessions} sequences of the language model are taken")
        needed = self._blocks(context_tokens)
        if self.held_tokens + needed > self._pool:
            raise NoRoom(
                f"the KV cache holds {self._pool} tokens, {self.held_tokens} are set aside, and {needed} are needed"
            )
        self._held[who] = needed

    def give(self, who: Hashable) -> None:
        """Idempotent."""
        self._held.pop(who, None)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block) * self._block
