"""The egress of one session: numbers its events, has them journaled, then hands them on. SANS-I/O.

It runs in the attached gateway, and in the shard of a detached session. Whoever drives it (see `pump`)
carries batches to the journal, outcomes back, frames to the socket and acknowledgements to the shard.

Rule 1. A number is given when a batch is taken, once, to one delivery id; the frame leaves after the reply.
Rule 2. One batch is out at a time. Of unknown outcome, it is repeated as it is: never purged or renumbered.
        A refusal says what got in; that is handed on, the rest loses its number (nobody has seen it).
Rule 3. What has no number yet can be purged, and is dropped when a higher owner comes.
Rule 4. An id that is not above the last settled one was numbered before, whoever sends it again.
Rule 5. Store away (a wait passed the deadline, or the breaker is open): frames leave at once and their
        entries are kept, bounded like the journal. They are appended in order before anything new; only what
        falls out of the bound leaves a hole. Numbering never stops. While more than a batch of them is to be
        appended new frames do not wait for it: that would be heard. With less the journal comes first again,
        however slowly it answers.
Rule 6. Journal released although the session's last event waits here (its client read nothing for longer than
        the session keeps its keys): the session is over and nobody can resume it. With `live_end` the rest
        leaves at once, numbered on, and is not kept; else the egress stops as `gone`.
        Detached (`detached`), nobody reads along: nothing leaves and nothing is acknowledged without the journal.
Rule 7. The acknowledgement is a watermark: everything through it was handed on or purged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import islice

import msgspec

from duologue.bus.messages import Delivered, Delivery
from duologue.delivery.breaker import StoreBreaker
from duologue.fence import DeliveryId, Owner
from duologue.store.ports import Appended, AppendOutcome, Entry, Head, JournalRefused, Unknown


class EgressLimits(msgspec.Struct, frozen=True):
    """`queue_*` bound what has no number yet, `kept_*` what was sent while the store was away."""

    queue_events: int = 1024
    queue_bytes: int = 4 * 1024 * 1024
    batch_events: int = 32
    batch_bytes: int = 256 * 1024
    kept_bytes: int = 8 * 1024 * 1024
    kept_s: float = 60.0


class Put(Enum):
    """What became of the events that were put."""

    TAKEN = "taken"
    STALE = "stale"
    """Of an owner that was replaced: dropped."""
    OFF = "off"
    """This egress has stopped: dropped."""
    OVERFLOW = "overflow"
    """More than the bound: nothing of it was taken. The sender's output limits should have come first."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event for the socket: `body` carries `server_event_seq`. `close_code` not 0: close after it."""

    seq: int
    body: bytes
    close_code: int = 0
    close_reason: str = ""


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Arguments of `JournalAppender.submit`."""

    owner: Owner
    egress: int
    first_seq: int
    entries: list[Entry]


class _Event(msgspec.Struct, gc=False):
    owner: Owner
    id: DeliveryId
    body: bytes
    what: Delivery
    seq: int = 0
    sent_at: float = 0.0


def splice(body: bytes, seq: int) -> bytes:
    """The event with its number, as the client gets it. `body` is a JSON object of at least one member."""
    return b'%b,"server_event_seq":%d}' % (body[:-1], seq)


class Egress:
    """`owner` and `head` are those of the claim that made this process the egress.

    `through`: what the shard saw acknowledged (seq, delivery id) if it knows more than the store.
    """

    def __init__(
        self,
        session_id: str,
        owner: Owner,
        head: Head,
        breaker: StoreBreaker,
        *,
        through: tuple[int, DeliveryId] = (0, DeliveryId()),
        limits: EgressLimits | None = None,
        live_end: bool = False,
        detached: bool = False,
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        self.number = head.egress
        self.journaled = head.last_seq
        """The last number that the journal had when it was claimed."""
        self.seq = max(head.last_seq, through[0])
        """The last number that is settled: journaled, or sent and kept."""
        self.last = max(head.last_delivery, through[1])
        self.stopped = ""
        """Why it does nothing any more: replaced | gone | conflict | overflow; empty while it works."""
        self.barred: Owner | None = None
        """The store has a higher owner: nothing is appended until that one (or a higher) is known here."""
        self.holes = 0
        """Entries that fell out of the bound while the store was away."""
        self.purged = 0
        self._limits = limits or EgressLimits()
        self._live_end = live_end
        self._detached = detached
        self._released = False
        """The journal is gone and the terminal event is here: see rule 6."""
        self._breaker = breaker
        self._queue: deque[_Event] = deque()
        self._queue_bytes = 0
        self._numbered: deque[_Event] = deque()
        """With a number and not known to be journaled: the outstanding batch, and what was sent and kept."""
        self._kept_bytes = 0
        self._unsent = 0
        """How many of the numbered, all of one batch, wait for the reply. The others are sent."""
        self._flying = 0
        """The last seq of the batch that is out, or 0."""
        self._waiting_since: float | None = None
        self._tail = DeliveryId()
        """The highest id that the present owner has put."""
        self._acked: tuple[DeliveryId, int] | None = None
        self._repeat_ack = False

    # -- from the shard ------------------------------------------------------------------------------

    def known(self, seq: int, through: DeliveryId) -> None:
        """As the argument `through`, for an egress that learns it after its claim, before anything is put."""
        self.seq = max(self.seq, seq)
        self.last = max(self.last, through)

    def carry_on(self, before: Egress) -> None:
        """Take over what another egress of ours has sent and not journaled, in this one's place."""
        for event in islice(before._numbered, before.kept):
            if event.seq > self.journaled:
                self._numbered.append(event)
                self._kept_bytes += len(event.body)

    def put(self, owner: Owner, events: Sequence[Delivery], bodies: Sequence[bytes]) -> Put:
        """Events in order; what is a repetition is dropped and acknowledged."""
        if self.stopped:
            return Put.OFF
        if owner != self.owner:
            if owner.number <= self.owner.number:
                return Put.STALE
            self.owner_changed(owner)
        if self.barred is not None:
            return Put.STALE
        size = sum(map(len, bodies))
        if self._queue and (
            len(self._queue) + len(events) > self._limits.queue_events
            or self._queue_bytes + size > self._limits.queue_bytes
        ):
            return Put.OVERFLOW
        for event, body in zip(events, bodies, strict=True):
            id = DeliveryId(event.of or owner.number, event.n)
            if id <= self._tail:
                self._repeat_ack = True
                continue
            if self._acked is None and id > self.last:
                self._acked = (DeliveryId(id.owner, id.n - 1), self.seq)  # the shard knows as much
            self._tail = id
            self._queue.append(_Event(owner, id, body, event))
            self._queue_bytes += len(body)
        return Put.TAKEN

    def invalidate(self, owner: Owner, response_id: str, through_epoch: int) -> int:
        """Purge the audio of a response that has no number yet. Answers how many events that were."""
        if owner != self.owner or not self._queue:
            return 0
        kept = deque(
            event for event in self._queue if event.what.media_of != response_id or event.what.epoch > through_epoch
        )
        gone = len(self._queue) - len(kept)
        self._replace_queue(kept)
        self.purged += gone
        return gone

    def owner_changed(self, owner: Owner) -> None:
        """A higher owner: what the older one queued is void. What is out stays out."""
        if owner.number <= self.owner.number:
            return
        self.owner = owner
        if self.barred is not None and self.barred.number <= owner.number:
            self.barred = None
        self._tail = DeliveryId()
        self._replace_queue(deque())

    def _replace_queue(self, events: deque[_Event]) -> None:
        self._queue = events
        self._queue_bytes = sum(len(event.body) for event in events)

    # -- to the journal ------------------------------------------------------------------------------

    def next_batch(self, now: float, room: bool) -> Batch | None:
        """The batch to submit now, if any. `room`: the socket can take more; without it nothing is numbered.

        Answer with `on_outcome`, or with `Unknown` at once when it could not be submitted.
        """
        if self.stopped or self.barred is not None or self._flying or self._released:
            return None
        if not self._numbered and not (room and self._settle_repeated()):
            return None
        if not self._breaker.may_try(now):
            return None
        if not self._numbered:
            self._number()
        if self._waiting_since is None:
            self._waiting_since = now
        first = self._numbered[0]
        entries: list[Entry] = []
        size = 0
        for event in self._numbered:
            size += len(event.body)
            if entries and (len(entries) >= self._limits.batch_events or size > self._limits.batch_bytes):
                break
            entries.append((event.id, event.body))
        self._flying = first.seq + len(entries) - 1
        # What the client has seen is a fact that any later owner vouches for; the rest is its owner's claim.
        owner = first.owner if self._unsent else self.owner
        return Batch(owner, self.number, first.seq, entries)

    def _settle_repeated(self) -> bool:
        """Drop what was numbered before; whether anything is left."""
        queue = self._queue
        while queue and queue[0].id <= self.last:
            self._queue_bytes -= len(queue.popleft().body)
        return bool(queue)

    def _number(self) -> None:
        """Take a batch out of the queue: it waits for the journal's reply."""
        queue, seq, size = self._queue, self.seq, 0
        while queue and self._unsent < self._limits.batch_events:
            size += len(queue[0].body)
            if self._unsent and size > self._limits.batch_bytes:
                break
            event = queue.popleft()
            seq += 1
            event.seq = seq
            self._queue_bytes -= len(event.body)
            self._kept_bytes += len(event.body)
            self._numbered.append(event)
            self._unsent += 1

    def on_outcome(self, outcome: AppendOutcome, now: float) -> list[Frame]:
        """What became of the batch that is out. Returns the frames to write now."""
        flying, self._flying = self._flying, 0
        if isinstance(outcome, Unknown) or not flying:
            if not self._unsent:
                self._waiting_since = None
            return []
        self._breaker.answered()
        if isinstance(outcome, Appended):
            self._waiting_since = None
            return self._journaled(flying)
        return self._refused(outcome, flying)

    def _journaled(self, through: int) -> list[Frame]:
        frames: list[Frame] = []
        numbered = self._numbered
        while numbered and numbered[0].seq <= through:
            event = numbered.popleft()
            self._kept_bytes -= len(event.body)
            if self._unsent:
                self._unsent -= 1
                frames.append(self._settle(event))
        return frames

    def _settle(self, event: _Event) -> Frame:
        self.seq, self.last = event.seq, event.id
        what = event.what
        return Frame(event.seq, splice(event.body, event.seq), what.close_code, what.close_reason)

    def _refused(self, refused: JournalRefused, flying: int) -> list[Frame]:
        self._waiting_since = None
        if refused.reason == "gone" and self._live_end and self.has_end:
            self._released = True
            self._forget_kept()
            return []
        if refused.reason != "owner":
            self._stop("replaced" if refused.reason == "egress" else refused.reason)
            return []
        stored = refused.head
        if stored.owner.number >= self.owner.number and stored.owner != self.owner:
            self.barred = stored.owner
        if not self._unsent:
            return []  # sent and kept: appended under the next owner
        frames: list[Frame] = []
        if stored.egress == self.number:
            got_in = sum(event.id <= stored.last_delivery for event in self._numbered)
            if got_in:
                frames = self._journaled(self._numbered[got_in - 1].seq)
        for event in self._numbered:
            self._kept_bytes -= len(event.body)
        self._numbered.clear()
        self._unsent = 0
        if self.barred is not None:
            self._tail = min(self._tail, self.last)
            self._replace_queue(deque())
        return frames

    @property
    def has_end(self) -> bool:
        """Whether the session's last event waits here."""
        newest = self._queue[-1] if self._queue else (self._numbered[-1] if self._unsent else None)
        return newest is not None and newest.what.close_code != 0

    def _forget_kept(self) -> None:
        """What was sent has no journal to go to any more."""
        for _ in range(self.kept):
            self._kept_bytes -= len(self._numbered.popleft().body)

    def _stop(self, why: str) -> None:
        self.stopped = why
        self._replace_queue(deque())
        for _ in range(self._unsent):
            self._kept_bytes -= len(self._numbered.pop().body)
        self._unsent = 0
        if why != "replaced":  # what was sent is for whoever has claimed the journal: see `leftover`
            self._forget_kept()

    # -- while the store is away ---------------------------------------------------------------------

    def live(self, now: float, room: bool) -> list[Frame]:
        """The frames that leave without the journal, because it has been waited for long enough."""
        if self.stopped or self.barred is not None:
            return []
        if not self._released:
            if self._waiting_since is not None:
                self._breaker.judge(self._waiting_since, now)
            if self._detached or not (self._breaker.open or self.kept > self._limits.batch_events):
                return []
        if not self._unsent:
            if not room or not self._settle_repeated():
                return []
            self._number()
        frames: list[Frame] = []
        for i in range(self._unsent, 0, -1):
            event = self._numbered[-i]
            event.sent_at = now
            frames.append(self._settle(event))
        self._unsent = 0
        if not self._flying:
            self._waiting_since = None
        if self._released:
            self._forget_kept()
        else:
            self._bound_kept(now)
        return frames

    def _bound_kept(self, now: float) -> None:
        limits = self._limits
        while self._numbered and (
            self._kept_bytes > limits.kept_bytes or now - self._numbered[0].sent_at > limits.kept_s
        ):
            self._kept_bytes -= len(self._numbered.popleft().body)
            self.holes += 1

    # -- to the shard --------------------------------------------------------------------------------

    def take_ack(self) -> Delivered | None:
        """The watermark, if it has moved. Call it after the frames were written (or journaled, detached)."""
        if not self._unsent:
            self._settle_repeated()
        pending = self._numbered[-self._unsent] if self._unsent else (self._queue[0] if self._queue else None)
        if pending is not None:
            through = DeliveryId(pending.id.owner, pending.id.n - 1)
        else:
            through = max(self._tail, self.last)
        ack = (through, self.seq)
        if self.stopped or (ack == self._acked and not self._repeat_ack):
            return None
        self._acked, self._repeat_ack = ack, False
        return Delivered(self.session_id, self.owner, self.number, through, self.seq)

    def last_words(self) -> list[Batch]:
        """For an egress that ends: what it has sent and not journaled, behind the batch that is out, in batches to be
        submitted one after the other. Whoever claims the journal after that finds it there."""
        if self.stopped or self.barred is not None or self._released:
            return []
        kept = [event for event in islice(self._numbered, self.kept) if event.seq > self._flying]
        size = self._limits.batch_events
        return [
            Batch(self.owner, self.number, some[0].seq, [(event.id, event.body) for event in some])
            for some in (kept[at : at + size] for at in range(0, len(kept), size))
        ]

    def leftover(self) -> list[tuple[int, DeliveryId, bytes]]:
        """The number, id and body of all that was sent and is not known to be journaled, in order: for another egress,
        once this one has ended."""
        return [(event.seq, event.id, event.body) for event in islice(self._numbered, self.kept)]

    @property
    def flying(self) -> bool:
        """A batch is out, and its outcome is not known yet."""
        return self._flying > 0

    @property
    def busy(self) -> bool:
        """Something waits for time to pass: drive it again within the probe interval."""
        return not self.stopped and bool(self._numbered or self._queue)

    @property
    def kept(self) -> int:
        """Entries sent and not journaled yet."""
        return len(self._numbered) - self._unsent

    @property
    def kept_bytes(self) -> int:
        """The size of those."""
        return sum(len(event.body) for event in islice(self._numbered, self.kept))

    @property
    def queued_events(self) -> int:
        """Events without a number."""
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """The size of those."""
        return self._queue_bytes
