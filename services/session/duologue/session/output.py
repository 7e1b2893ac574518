"""A session's rendered events on their way to whoever is the egress, kept until they are acknowledged.

Rule 1. Events go out in the order of their `n`. What an egress did not take stays here and goes first.
Rule 2. What was handed over is kept until acknowledged, and is handed over again to the next egress.
Rule 3. An event whose `n` was added before is known: the core repeats itself when the egress changes.
Rule 4. Invalidated audio leaves both: neither a late hand-over nor a second one may bring it back.

The core bounds what is here (2 MiB, 512 events, a reserve): it counts an event until its acknowledgement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

from duologue.bus.link import Link
from duologue.bus.messages import Deliveries, Delivery, Invalidate
from duologue.fence import DeliveryId, Owner
from duologue.session.core.effects import Deliver
from duologue.session.tallies import Tallies

MAX_BATCH_EVENTS: Final = 64
MAX_BATCH_BYTES: Final = 256 * 1024

Event = tuple[Delivery, bytes]


class Sink(ABC):
    """Where events go: the attached gateway, or the shard's own egress of a detached session."""

    @abstractmethod
    def take(self, events: Sequence[Event]) -> bool:
        """Take all of them, in order, or none (False): `SessionOutput.flush` again when there is room."""

    @abstractmethod
    def invalidate(self, response_id: str, through_epoch: int) -> None:
        """Forget what has no number yet of this response's audio."""


class GatewaySink(Sink):
    """The link to the gateway that holds the attachment."""

    __slots__ = ("_owner", "_session_id", "link")

    def __init__(self, link: Link, session_id: str, owner: Owner) -> None:
        self.link = link
        self._session_id = session_id
        self._owner = owner

    def take(self, events: Sequence[Event]) -> bool:
        deliveries, bodies = zip(*events, strict=True)
        return self.link.send(Deliveries(self._session_id, self._owner, deliveries), bodies)

    def invalidate(self, response_id: str, through_epoch: int) -> None:
        self.link.send(Invalidate(self._session_id, self._owner, response_id, through_epoch))


class SessionOutput:
    """See the module."""

    __slots__ = (
        "_flushing",
        "_sink",
        "_tallies",
        "_unacked",
        "_unsent",
        "end",
        "last_n",
        "owner_number",
    )

    def __init__(self, owner_number: int, tallies: Tallies) -> None:
        self._tallies = tallies
        self.owner_number = owner_number
        self.last_n = 0
        self.end: Delivery | None = None
        """The event that ends the session, once that was added."""
        self._unsent: deque[Event] = deque()
        self._unacked: deque[Event] = deque()
        self._sink: Sink | None = None
        self._flushing = False

    @property
    def pending(self) -> int:
        """Events that no egress has acknowledged."""
        return len(self._unsent) + len(self._unacked)

    @property
    def pending_bytes(self) -> int:
        return sum(len(body) for events in (self._unacked, self._unsent) for _, body in events)

    @property
    def stuck(self) -> bool:
        """Events wait here for room at the egress, or for an egress."""
        return bool(self._unsent)

    def add(self, order: Deliver) -> None:
        if order.n <= self.last_n:
            return
        self.last_n = order.n
        delivery = Delivery(order.n, order.media_of, order.epoch, order.close_code, order.close_reason, order.of)
        if order.close_code:
            self.end = delivery
        self._unsent.append((delivery, order.body))

    def flush(self) -> None:
        """Hand over what waits, as far as the egress takes it. It may acknowledge from inside."""
        if self._flushing or not self._unsent:
            return
        self._flushing = True
        try:
            while self._unsent and (sink := self._sink) is not None:
                batch = self._batch()
                self._unacked.extend(batch)
                if not sink.take(batch):
                    self._tallies.credit_waits += 1
                    for _ in batch:
                        self._unsent.appendleft(self._unacked.pop())
                    return
        finally:
            self._flushing = False

    def _batch(self) -> list[Event]:
        """The first events that fit into one message, taken off; at least one."""
        unsent = self._unsent
        if len(unsent) <= 4:
            batch = list(unsent)
            unsent.clear()
            return batch
        batch = [unsent.popleft()]
        size = len(batch[0][1])
        while unsent and len(batch) < MAX_BATCH_EVENTS:
            size += len(unsent[0][1])
            if size > MAX_BATCH_BYTES:
                break
            batch.append(unsent.popleft())
        return batch

    def point_at(self, sink: Sink | None) -> None:
        """A new egress (None: there is none for now). Everything unacknowledged goes to it, oldest first."""
        self._sink = sink
        if self._unacked:
            self._unacked.extend(self._unsent)
            self._unsent = self._unacked
            self._unacked = deque()

    def acknowledged(self, through: DeliveryId) -> None:
        """Forget what is on a socket or in the journal. An older owner's numbers say nothing of ours, but of what it
        made and we inherited."""
        by, n = through.owner, through.n
        if by > self.owner_number:
            return
        for events in (self._unacked, self._unsent):
            while events:
                made_by = events[0][0].of or self.owner_number
                if made_by > by or (made_by == by and events[0][0].n > n):
                    break
                events.popleft()
            if events:
                return

    def invalidate(self, response_id: str, through_epoch: int) -> None:
        self._unsent = _without(self._unsent, response_id, through_epoch)
        self._unacked = _without(self._unacked, response_id, through_epoch)
        if self._sink is not None:
            self._sink.invalidate(response_id, through_epoch)


def _without(events: deque[Event], response_id: str, through_epoch: int) -> deque[Event]:
    if not events:
        return events
    return deque(e for e in events if e[0].media_of != response_id or e[0].epoch > through_epoch)
