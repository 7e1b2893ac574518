"""The chat turns of one gateway: how many there may be, who hears of the bus for them, and which shard takes one.

Rule 1. At most `limit` at once, the reading of their requests included; a further one is 503.
Rule 2. Shards are asked in the order of how much room they have, those on standby last; only one that is full makes
        us ask the next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Final
from uuid import uuid4

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import StartTurn
from duologue.gateway.chat.request import ChatRequest
from duologue.gateway.chat.turn import PendingTurn
from duologue.gateway.links import ShardLinks
from duologue.gateway.router import Router, Shard
from duologue.protocol.duplex import RealtimeProtocolError, encode_command

FULL: Final = "resource_exhausted"
RETRY_AFTER_MS: Final = 1000

_encode: Final = msgspec.json.Encoder().encode


def exhausted(message: str) -> RealtimeProtocolError:
    return RealtimeProtocolError(FULL, message, retry_after_ms=RETRY_AFTER_MS)


class PendingTurns:
    """See the module."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        """Requests that hold a place."""
        self._turns: dict[str, PendingTurn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    # -- for the links ---------------------------------------------------------------------------------------

    def of(self, session_id: str) -> PendingTurn | None:
        return self._turns.get(session_id)

    def on_link(self, link: Link) -> Sequence[PendingTurn]:
        return [turn for turn in self._turns.values() if turn.link is link]

    # -- for the requests ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def place(self) -> Generator[None, None, None]:
        """Hold a place. Raises `resource_exhausted`."""
        if self.inside >= self.limit:
            raise exhausted("too many chat turns at once")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    @contextlib.contextmanager
    def turn(self) -> Generator[PendingTurn, None, None]:
        """A turn under a new id; it is left at the end."""
        turn = PendingTurn(f"turn-{uuid4().hex}")
        self._turns[turn.id] = turn
        try:
            yield turn
        finally:
            turn.leave()
            del self._turns[turn.id]


async def ask(turn: PendingTurn, request: ChatRequest, router: Router, links: ShardLinks) -> bytes | None:
    """Have a shard take the turn; its first event, None if nobody waits for it any more.

    Raises RealtimeProtocolError: `model_not_found`, `model_not_supported`, `resource_exhausted`, or what the turn
    was refused for.
    """
    refused = exhausted("no shard has room for another chat turn of this model")
    message = StartTurn(turn.id, request.model)
    frames = [_encode(request.session), *map(encode_command, request.commands)]
    for shard in _candidates(router, request.model):
        link = links.of(shard.incarnation)
        if link is None or not await turn.start(link, message, frames):
            continue
        event = await turn.next()
        if event is not None or turn.error is None:
            return event
        if turn.error.code != FULL:
            raise turn.error
        refused = turn.error
    raise refused


def _candidates(router: Router, model: str) -> list[Shard]:
    if not router.models:
        raise exhausted("no session service is reachable")
    if model not in router.models:
        raise RealtimeProtocolError("model_not_found", f"there is no model {model[:80]!r}", param="model")
    able: list[tuple[bool, int, Shard]] = []
    declared = False
    for shard in router.shards:
        pipeline = shard.pipeline(model)
        if pipeline is None or not pipeline.max_chat_turns:
            continue
        declared = True
        if shard.record.accepting and pipeline.ready:
            able.append((shard.record.standby, pipeline.chat_turns, shard))
    if not declared:
        raise RealtimeProtocolError("model_not_supported", f"{model} answers no chat completions", param="model")
    able.sort(key=lambda one: one[:2])
    return [shard for _, _, shard in able]
