"""A chat turn as the gateway holds it: asked of a shard, its events queued for the HTTP answer.

Rule 1. One turn is with one shard at a time. The bus talks to it as to an attachment, by the turn's own id.
Rule 2. Bounded: events that the HTTP client has not taken (`MAX_QUEUED_BYTES`); beyond it the turn is cancelled
        and fails as `output_backpressure`.
Rule 3. However it ends, the shard hears of it: `leave` cancels what is not over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import AnyMessage, CancelTurn, SessionRefused, StartTurn, TurnEvents
from duologue.gateway.chat.answer import error_of
from duologue.protocol.duplex import RealtimeProtocolError

MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
START_S: Final = 5.0
"""How long a turn may wait for the credit of a shard."""

_decode: Final = msgspec.json.Decoder().decode


class PendingTurn:
    """See the module. Used from the loop's thread."""

    def __init__(self, turn_id: str) -> None:
        self.id = turn_id
        self.link: Link | None = None
        self.error: RealtimeProtocolError | None = None
        """Why it ended without an answer, or in the middle of one."""
        self.over = False
        self.gone = False
        """The HTTP client has closed its connection."""
        self._events: deque[bytes] = deque()
        self._bytes = 0
        self._moved = asyncio.Event()

    async def start(self, link: Link, message: StartTurn, frames: Sequence[bytes]) -> bool:
        """Give the turn to this shard. False: it takes nothing."""
        self.link, self.error, self.over = link, None, False
        try:
            async with asyncio.timeout(START_S):
                while not link.send(message, frames):
                    if self.over or self.gone:
                        return False
                    await self._wait()
        except TimeoutError:
            return False
        return True

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    async def next(self) -> bytes | None:
        """The next event; None: the turn is over (see `error`), or nobody waits for it any more (`gone`)."""
        while not self._events:
            if self.over or self.gone:
                return None
            await self._wait()
        event = self._events.popleft()
        self._bytes -= len(event)
        return event

    def client_gone(self) -> None:
        self.gone = True
        self._moved.set()

    def leave(self) -> None:
        """Nobody reads on."""
        if self.link is not None and not self.over:
            self.link.send(CancelTurn(self.id))
        self.over = True

    # -- from the bus ------------------------------------------------------------------------------------

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        if link is not self.link or self.over:
            return
        if isinstance(message, TurnEvents):
            self._events.extend(frames)
            self._bytes += sum(map(len, frames))
            self.over = message.last
            if self._bytes > MAX_QUEUED_BYTES and not self.over:
                link.send(CancelTurn(self.id))
                self._end(RealtimeProtocolError("output_backpressure", "the answer is not read fast enough"))
        elif isinstance(message, SessionRefused):
            self._end(error_of(_decode(frames[0])))
        self._moved.set()

    def on_credit(self) -> None:
        self._moved.set()

    def on_link_lost(self, link: Link, reason: str) -> None:
        if link is self.link and not self.over:
            self._end(RealtimeProtocolError("shard_lost", f"the shard of this turn was lost ({reason})"))

    def _end(self, error: RealtimeProtocolError) -> None:
        self.error, self.over = error, True
        self._moved.set()
