"""The last that a gateway says of an attachment to the session's shard: what it could not journal, and that it is over.

What a client was sent while the store was away ends with the egress of its socket, and whoever claims the journal next
numbers on: only the shard, which hears of every claim, can add those events in time.

Rule 1. `Kept` comes before the `Detach`. It needs credit like anything with a payload: until there is some it waits
        here, and all that comes after it on that link, bounded; beyond that it is lost, and so with its link. A client
        that lacks what was lost is told of the gap.
Rule 2. A shard that does not say in the registry that it takes them is sent none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from duologue.bus.link import Link
from duologue.bus.messages import Detach, Kept
from duologue.fence import DeliveryId
from duologue.gateway.router import Router
from duologue.runtime import metrics

BATCH_BYTES: Final = 256 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024
OUTCOMES: Final = ("handed_on", "lost")

_Event = tuple[int, DeliveryId, bytes]
_Said = tuple[Kept | Detach, Sequence[bytes]]


class Departures:
    """See the module. Used from the loop's thread; told of every link by `ShardLinks`."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._waiting: dict[Link, deque[_Said]] = {}
        """Of each link that is there."""
        self.bytes = 0
        """The bodies that wait for credit."""

    def keep(self, link: Link, session_id: str, generation: int, events: Sequence[_Event]) -> None:
        """What was sent to the socket of `generation` and is not known to be journaled: number, id and body of each,
        in order and without a hole."""
        shard = self._router.owner(link.peer.incarnation)
        waiting = self._waiting.get(link)
        takes = waiting is not None and shard is not None and shard.record.takes_kept
        for batch in _batches(events):
            bodies = [body for _, _, body in batch]
            size = sum(map(len, bodies))
            takes = takes and self.bytes + size <= MAX_BYTES  # a later one alone is of no use
            if not takes or waiting is None:
                metrics.GATEWAY_KEPT.labels("lost").inc(len(batch))
                continue
            waiting.append((Kept(session_id, generation, batch[0][0], tuple(id for _, id, _ in batch)), bodies))
            self.bytes += size
        self.on_credit(link)

    def detach(self, link: Link, message: Detach) -> None:
        """It is over, and behind what is left of it."""
        if waiting := self._waiting.get(link):
            waiting.append((message, ()))
        else:
            link.send(message)

    # -- links --------------------------------------------------------------------------------------------

    def on_ready(self, link: Link) -> None:
        self._waiting[link] = deque()

    def on_credit(self, link: Link) -> None:
        """As much as the link takes now."""
        waiting = self._waiting.get(link, ())
        while waiting and link.send(*waiting[0]):
            self._count(waiting.popleft(), "handed_on")

    def on_lost(self, link: Link) -> None:
        for said in self._waiting.pop(link, ()):
            self._count(said, "lost")

    def _count(self, said: _Said, outcome: str) -> None:
        _, bodies = said
        self.bytes -= sum(map(len, bodies))
        metrics.GATEWAY_KEPT.labels(outcome).inc(len(bodies))


def _batches(events: Sequence[_Event]) -> Iterator[Sequence[_Event]]:
    """As many as fit into one message; at least one in each."""
    first = size = 0
    for at, (_, _, body) in enumerate(events):
        if at > first and size + len(body) > BATCH_BYTES:
            yield events[first:at]
            first, size = at, 0
        size += len(body)
    if first < len(events):
        yield events[first:]
