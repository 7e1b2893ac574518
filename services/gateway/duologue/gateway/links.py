"""The gateway's links to the shards: who is reachable, and which attachment a message is for.

Rule 1. A shard is addressed by its incarnation: a link to a restarted shard is another link.
Rule 2. A message for a session that is not attached here is dropped: the shard keeps what is unacknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol

from duologue.bus.link import Link, LinkHandler, PeerLost
from duologue.bus.messages import AnyMessage, AskNumbered, Numbered
from duologue.gateway.departures import Departures


class Attached(Protocol):
    """What a link needs of whoever is attached through it."""

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None: ...

    def on_credit(self) -> None: ...

    def on_link_lost(self, link: Link, reason: str) -> None: ...


class Sessions(Protocol):
    """Who is attached here."""

    def of(self, session_id: str) -> Attached | None: ...

    def on_link(self, link: Link) -> Sequence[Attached]: ...


class ShardLinks(LinkHandler):
    """See the module. Used from the loop's thread."""

    def __init__(self, sessions: Sessions, departures: Departures, turns: Sessions | None = None) -> None:
        """`turns`: who else is talked to by an id of its own (chat turns); looked for after the sessions."""
        self.departures = departures
        self._sessions = sessions
        self._turns = turns
        self._links: dict[str, Link] = {}
        self._waiting: dict[str, list[asyncio.Future[Link]]] = {}
        self._asked: dict[str, list[tuple[Link, asyncio.Future[int | None]]]] = {}
        """By session: who waits for its `Numbered`, and from which shard."""
        self.stray = 0
        """Messages for sessions that are not attached here."""

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def of(self, incarnation: str) -> Link | None:
        """The live link to this shard incarnation."""
        return self._links.get(incarnation)

    async def reach(self, incarnation: str, timeout_s: float) -> Link | None:
        """The link to this incarnation as soon as it is there; None after `timeout_s`."""
        link = self._links.get(incarnation)
        if link is not None:
            return link
        ready: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(incarnation, [])
        waiting.append(ready)
        try:
            async with asyncio.timeout(timeout_s):
                return await ready
        except TimeoutError:
            return None
        finally:
            waiting.remove(ready)
            if not waiting and self._waiting.get(incarnation) is waiting:
                del self._waiting[incarnation]

    async def numbered(self, link: Link, session_id: str, timeout_s: float) -> int | None:
        """How far the numbering of this session goes, by its shard; None: no answer. One waits for each resume."""
        if not link.send(AskNumbered(session_id)):
            return None
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        asked = self._asked.setdefault(session_id, [])
        asked.append((link, answer))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            asked.remove((link, answer))
            if not asked and self._asked.get(session_id) is asked:
                del self._asked[session_id]

    def _answer(self, link: Link, session_id: str, seq: int | None) -> None:
        for asked, answer in self._asked.get(session_id, ()):
            if asked is link and not answer.done():
                answer.set_result(seq)

    # -- LinkHandler --------------------------------------------------------------------------------------

    def on_ready(self, link: Link) -> None:
        if link.peer.kind != "shard":
            link.drop("closed")
            return
        self._links[link.peer.incarnation] = link
        self.departures.on_ready(link)
        for ready in self._waiting.get(link.peer.incarnation, ()):
            if not ready.done():
                ready.set_result(link)

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        if type(message) is Numbered:
            self._answer(link, message.session_id, message.seq)
            return
        attached = self._sessions.of(message.session_id)
        if attached is None and self._turns is not None:
            attached = self._turns.of(message.session_id)
        if attached is None:
            self.stray += 1
        else:
            attached.on_message(link, message, frames)

    def on_credit(self, link: Link) -> None:
        self.departures.on_credit(link)
        for attached in self._on(link):
            attached.on_credit()

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        if self._links.get(link.peer.incarnation) is link:
            del self._links[link.peer.incarnation]
        self.departures.on_lost(link)
        for session_id in list(self._asked):
            self._answer(link, session_id, None)
        for attached in self._on(link):
            attached.on_link_lost(link, lost.reason)

    def _on(self, link: Link) -> list[Attached]:
        turns = () if self._turns is None else self._turns.on_link(link)
        return [*self._sessions.on_link(link), *turns]
