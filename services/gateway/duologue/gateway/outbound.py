"""The way of events to one client: from the shard, through the journal, onto the socket.

A `delivery.Pump` does the work; this is its sink, and what comes before there can be a pump.

Rule 1. Nothing is numbered before `go_live`: first `session.created` or the replay, then what is new. Until
        then events can be purged and count against the session's output limits in the shard.
Rule 2. Frames are written at once and in order; the acknowledgement follows.
Rule 3. A terminal event that was numbered before this attachment is nobody's to write here: the replay has it, or
        the client. Its close code follows when that is done, and so does the last acknowledgement: on that the
        shard has the journal deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from duologue.bus.messages import Delivered, Deliveries, Delivery, Invalidate
from duologue.delivery.egress import Egress, Frame, Put
from duologue.delivery.pump import Pump, Sink
from duologue.fence import DeliveryId, Owner
from duologue.gateway.wire import Wire
from duologue.store.ports import Head

if TYPE_CHECKING:
    from duologue.gateway.attachment import Attachment

MAX_EARLY: Final = 1024
"""Events, and purges of them, that may come between the shard's answer and the claim of the journal."""


class Outbound(Sink):
    """See the module. One attachment's."""

    def __init__(self, attachment: Attachment, wire: Wire) -> None:
        self._attachment = attachment
        self._wire = wire
        self._pump: Pump | None = None
        self._early: list[tuple[Deliveries | Invalidate, Sequence[bytes]]] = []
        self._early_events = 0
        self._live = False
        self.sent = 0
        """The last number that was written to the socket; whoever replays says so here."""
        self.ending = False
        """The session's terminal event has come from the shard, or came before this attachment."""
        self._end: tuple[DeliveryId, Delivery] | None = None
        self._owed: Delivered | None = None
        """The acknowledgement that waits for the end of the replay."""

    @property
    def seq(self) -> int:
        """The number of the last event that was sent to the client or journaled for it, ever."""
        return 0 if self._pump is None else self._pump.egress.seq

    @property
    def has_end(self) -> bool:
        """The session's last event waits here, behind whatever else is to be written."""
        return self._pump is not None and self._pump.egress.has_end

    def begin(self, owner: Owner, head: Head) -> None:
        """This process is the egress, by the claim that answered `head`."""
        attachment = self._attachment
        gateway = attachment.gateway
        egress = Egress(attachment.session_id, owner, head, gateway.breaker, live_end=True)
        self._pump = Pump(egress, gateway.appender, self, gateway.pumps, gateway.now)
        early, self._early = self._early, []
        for message, frames in early:
            if isinstance(message, Deliveries):
                self._pump.put(message.owner, message.events, frames)
            else:
                self.invalidate(message)

    def begin_again(self, owner: Owner, head: Head) -> None:
        """The egress once more, by another claim: another owner, or the same one lost us meanwhile. What is out and
        unanswered is void: the journal has it, or the owner says it again. What was sent and not journaled is kept."""
        before = self._pump
        assert before is not None
        gateway = self._attachment.gateway
        known = before.egress.seq, before.egress.last
        egress = Egress(self._attachment.session_id, owner, head, gateway.breaker, through=known, live_end=True)
        egress.carry_on(before.egress)
        before.close()
        self._live = self.ending = False
        self._end = self._owed = None
        self._pump = Pump(egress, gateway.appender, self, gateway.pumps, gateway.now)

    @property
    def numbered(self) -> tuple[int, DeliveryId]:
        """The last number that was given, and to what."""
        return (0, DeliveryId()) if self._pump is None else (self._pump.egress.seq, self._pump.egress.last)

    def known(self, seq: int, through: DeliveryId) -> None:
        """What the shard knows to be numbered: the journal may know less."""
        if self._pump is not None:
            self._pump.egress.known(seq, through)

    def ends(self, owner: Owner, end: Delivery) -> None:
        """The session was over when this attachment began."""
        self.ending = True
        self._end = DeliveryId(end.of or owner.number, end.n), end

    def go_live(self) -> None:
        """What had to come first is written."""
        self._live = True
        owed, self._owed = self._owed, None
        if owed is not None:
            self._attachment.owes(owed)
        if self._end is not None and self._pump is not None and self._end[0] <= self._pump.egress.last:
            self._attachment.terminal(self._end[1].close_code, self._end[1].close_reason)
        else:
            self.drained()

    def settle(self) -> None:
        """Have the acknowledgement of what was written owed now: nothing will run the pump again."""
        if self._pump is not None and (ack := self._pump.egress.take_ack()) is not None:
            self._attachment.owes(ack)

    def close(self) -> None:
        """Nothing of this attachment is written any more; what is out in the journal stays there, and what was sent
        and is not out goes there now."""
        self._early.clear()
        if self._pump is not None:
            self._pump.close()

    def leftover(self) -> list[tuple[int, DeliveryId, bytes]]:
        """What was sent and is not known to be journaled: number, id and body, in order."""
        return [] if self._pump is None else self._pump.egress.leftover()

    # -- from the shard ---------------------------------------------------------------------------------

    def put(self, message: Deliveries, frames: Sequence[bytes]) -> None:
        """Events, in order."""
        events = message.events
        if events and events[-1].close_code:
            self.ending = True
        if self._pump is not None:
            if self._pump.put(message.owner, events, frames) is Put.STALE:
                self._attachment.gateway.tally.stale["older owner"] += len(events)
            return
        self._keep_early(message, frames, len(events))

    def invalidate(self, message: Invalidate) -> None:
        """Purge what has no number of a cancelled response's audio."""
        if self._pump is None:
            self._keep_early(message, (), 1)
        else:
            self._pump.invalidate(message.owner, message.response_id, message.through_epoch)

    def _keep_early(self, message: Deliveries | Invalidate, frames: Sequence[bytes], events: int) -> None:
        self._early_events += events
        if self._early_events > MAX_EARLY:
            self.stopped("overflow")
        else:
            self._early.append((message, frames))

    def drained(self) -> None:
        """The client has read, or something else has changed."""
        if self._pump is not None:
            self._pump.drained()

    # -- Sink -------------------------------------------------------------------------------------------

    def room(self) -> bool:
        return self._live and self._wire.has_room()

    def write(self, frames: Sequence[Frame]) -> None:
        bodies = [frame.body for frame in frames]
        if frames:
            self.sent = frames[-1].seq
        tally = self._attachment.gateway.tally
        tally.frames_out += len(bodies)
        tally.bytes_out += sum(map(len, bodies))
        self._wire.write(*bodies)
        last = frames[-1] if frames else None
        if last is not None and last.close_code:  # nothing comes after the terminal event
            self._attachment.terminal(last.close_code, last.close_reason)

    def delivered(self, ack: Delivered) -> None:
        if self.ending and not self._live:
            self._owed = ack
        else:
            self._attachment.owes(ack)

    def stopped(self, why: str) -> None:
        self._attachment.egress_stopped(why)

    def owner_replaced(self, owner: Owner) -> None:
        self._attachment.lose_shard("another one owns the session now")
