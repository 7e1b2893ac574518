"""A link handler that writes down what it is told, and waits for more of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.messages import AnyMessage, Append
from duologue.fence import StageFence

PATIENCE_S = 20.0
FENCE = StageFence(1, 1, 1)


def unit(number: int) -> Append:
    return Append("session", FENCE, 0, number, 0)


class Recorder(LinkHandler):
    """`echo`: every message goes back the way it came."""

    def __init__(self, *, echo: bool = False) -> None:
        self.ready: list[Link] = []
        self.messages: list[tuple[Peer, AnyMessage, list[bytes]]] = []
        self.credits = 0
        self.lost: list[PeerLost] = []
        self._echo = echo
        self._changed = asyncio.Event()

    def on_ready(self, link: Link) -> None:
        self.ready.append(link)
        self._changed.set()

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        self.messages.append((link.peer, message, list(frames)))
        if self._echo:
            link.send(message, frames)
        self._changed.set()

    def on_credit(self, link: Link) -> None:
        self.credits += 1
        self._changed.set()

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        self.lost.append(lost)
        self._changed.set()

    @property
    def units(self) -> list[int]:
        return [message.unit for _, message, _ in self.messages if isinstance(message, Append)]

    @property
    def reasons(self) -> list[str]:
        return [lost.reason for lost in self.lost]

    def link_to(self, name: str) -> Link:
        return next(link for link in reversed(self.ready) if link.peer.name == name)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds. Looked at after each event, and now and then for what is not told here."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.05)
