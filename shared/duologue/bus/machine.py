"""One link, SANS I/O: handshake, sequence, credit, heartbeats. The same for every adapter.

It is fed parsed headers and the time, and holds what must be written next (`take`). It never calls
anything: the driver (`driven`) reads `state`, `lost_reason` and `credit_returned` after each step.

    dialler   GREETING --READY--> LIVE --loss--> LOST          (HELLO is repeated while GREETING)
    listener              HELLO-> LIVE --loss--> LOST          (READY again for the same HELLO)

Rule 1. A link is never repaired. A gap, silence or another life of the peer ends it; a redial is a new
        link with a higher number, and messages of the old one are refused.
Rule 2. What is owed (greeting, grant, question, goodbye) is a flag, not a queue: it cannot pile up.
Rule 3. Credit counts the bytes of messages and frames from the start of the link, and only grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from duologue.bus.codec import (
    BYE,
    DATA,
    HELLO,
    IDLE,
    READY,
    Batch,
    BatchWriter,
    Fault,
    Greeting,
    Header,
    decode_batch,
    decode_greeting,
    encode_greeting,
    encode_header,
    encode_message,
    frame_sizes,
)
from duologue.bus.link import Frame, Peer
from duologue.bus.messages import BUS_VERSION, AnyMessage
from duologue.bus.stats import LinkStats

REASONS = frozenset({"gap", "silent", "replaced", "version", "closed", "send_failed", "corrupt", "misdialled"})
_NOBODY = Peer("", "", "")


class LinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a link behaves. Sizes in bytes, times in seconds."""

    window_bytes: int = 8 * 1024 * 1024
    heartbeat_s: float = 0.5
    expiry_s: float = 2.0
    gather_s: float = 0.085
    """What is sent lazily leaves at most this much later, unless something takes it along before: longer than a
    gateway gathers sound, so that an acknowledgement wakes nobody whom the next units will wake anyway."""
    stall_s: float = 1.0
    """A gap in our own loop longer than this says nothing about the peer."""
    version: int = BUS_VERSION


class State(Enum):
    GREETING = "greeting"
    LIVE = "live"
    LOST = "lost"


LIVE: Final = State.LIVE
"""Asked for with every message: the enum takes four times as long to find it."""


def agreed_version(mine: int, theirs: int) -> int | None:
    """The version both speak: each side speaks its own and the one before. None: no common one."""
    lower = min(mine, theirs)
    return lower if lower >= 1 and abs(mine - theirs) <= 1 else None


class LinkMachine:
    """One side of one link. Make it with `dial` or `accept`."""

    __slots__ = (
        "_ask",
        "_bye",
        "_consumed",
        "_counted",
        "_grant",
        "_granted_at",
        "_greet",
        "_heard_at",
        "_me",
        "_options",
        "_owe",
        "_peer_window",
        "_received_seq",
        "_sent",
        "_sent_at",
        "_sent_seq",
        "_uncredited",
        "_version",
        "_wanted",
        "_writer",
        "credit_returned",
        "dials",
        "lost_reason",
        "number",
        "peer",
        "state",
        "stats",
    )

    def __init__(self, me: Peer, options: LinkOptions, number: int, stats: LinkStats, now: float) -> None:
        self._me, self._options, self.number, self.stats = me, options, number, stats
        self.state = State.GREETING
        self.dials = ""
        self.peer = _NOBODY
        self.lost_reason = ""
        self.credit_returned = False
        """Credit came back after a refused `send`; the driver tells the handler and resets it."""
        self._version = options.version
        self._writer = BatchWriter()
        self._sent_at = self._heard_at = now
        self._sent_seq = self._received_seq = 0
        self._sent = self._grant = self._peer_window = self._uncredited = self._wanted = 0
        self._consumed = self._granted_at = self._counted = 0
        self._greet, self._owe, self._ask, self._bye = True, False, False, ""

    @classmethod
    def dial(cls, me: Peer, options: LinkOptions, number: int, name: str, stats: LinkStats, now: float) -> LinkMachine:
        """The side that says HELLO, and expects a peer of this name."""
        machine = cls(me, options, number, stats, now)
        machine.dials = name
        return machine

    @classmethod
    def accept(
        cls, me: Peer, options: LinkOptions, header: Header, greeting: Greeting, stats: LinkStats, now: float
    ) -> LinkMachine:
        """The side that answers a HELLO whose version has been agreed already."""
        machine = cls(me, options, header.link, stats, now)
        machine._become_live(header, greeting)
        return machine

    # -- sending ---------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Bytes sent and, as far as we know, not yet consumed."""
        return self._sent - (self._grant - self._peer_window)

    @property
    def blocked(self) -> bool:
        """A `send` was refused for lack of credit and none has come back since."""
        return self._wanted > 0

    @property
    def pending(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._bye) or (
            self.state is not State.LOST and (self._greet or self._owe or self._ask or len(self._writer) > 0)
        )

    def send(self, message: AnyMessage, frames: Sequence[Frame] = ()) -> bool:
        """Take a message into the batch of this turn. False: not live, or no credit for it."""
        if self.state is not LIVE:
            return False
        encoded = encode_message(message)
        cost = len(encoded)
        sizes: Sequence[int] = ()
        if frames:
            sizes = frame_sizes(frames)
            cost += sum(sizes)
        sent = self._sent + cost
        if sent > self._grant and not self._goes_without_credit(message, cost):
            return False
        self._sent = sent
        self._writer.add_encoded(encoded, frames, sizes)
        return True

    def _goes_without_credit(self, message: AnyMessage, cost: int) -> bool:
        if message.needs_credit:
            if self._fits(cost):
                return True
            if not self._wanted:
                self._wanted, self._ask = cost, True
            return False
        # Always taken, but not without end: a peer that consumes nothing of a whole window of these is
        # as good as gone, and what we hold for it must stay bounded.
        self._uncredited += cost
        if self._uncredited > self._peer_window:
            self.lose("send_failed")
            return False
        return True

    def _fits(self, cost: int) -> bool:
        if self._sent + cost <= self._grant:
            return True
        return cost > self._peer_window and self.outstanding == 0

    def take(self, now: float) -> list[list[Frame]]:
        """The multipart messages to write now, in order. Empty when nothing is owed."""
        out: list[list[Frame]] = []
        if self.state is not State.LOST:
            if self._greet:
                kind = READY if self.state is State.LIVE else HELLO
                greeting = Greeting(self._me.name, self._me.kind, self._options.window_bytes)
                out.append([self._header(kind), encode_greeting(greeting)])
                self._greet = False
            if len(self._writer):
                counts, sizes, parts = self._writer.take()
                self._sent_seq += 1
                out.append([self._header(DATA, counts, sizes), *parts])
                self.stats.sent_batches += 1
                self.stats.sent_messages += len(counts)
                self.stats.sent_bytes += self._sent - self._counted
                self._counted = self._sent
            elif (self._owe or self._ask) and self.state is State.LIVE:
                out.append([self._header(IDLE)])
        if self._bye:
            out.append([self._header(BYE), self._bye.encode()])
            self._bye = ""
        if out:
            self._sent_at = now
        return out

    def _header(self, kind: int, counts: tuple[int, ...] = (), sizes: tuple[int, ...] = ()) -> bytes:
        grant = self._consumed + self._options.window_bytes
        ask, self._ask = self._ask, False
        self._granted_at, self._owe = self._consumed, False
        return encode_header(
            Header(
                self._version,
                kind,
                self._me.incarnation,
                self.peer.incarnation,
                self.number,
                self._sent_seq,
                grant,
                ask,
                counts,
                sizes,
            )
        )

    # -- receiving -------------------------------------------------------------------------------------

    def receive(self, header: Header, parts: Sequence[bytes], now: float) -> Batch | None:
        """One multipart message of this connection (HELLO excepted, see `greeted_again`).

        Answers the messages of a DATA; the driver calls `consumed` when they were handled.
        """
        if self.state is State.LOST or not self._is_mine(header):
            self.stats.refused += 1
            return None
        self._heard_at = now
        kind = header.kind
        if kind == DATA:
            return self._receive_data(header, parts)
        if kind == IDLE:
            if header.seq > self._received_seq:
                self.lose("gap")
            else:
                self._take_grant(header)
        elif kind == READY:
            self._receive_ready(header, parts)
        elif kind == BYE:
            self._receive_bye(parts)
        else:
            self.lose("corrupt")
        return None

    def _is_mine(self, header: Header) -> bool:
        if header.link != self.number or header.receiver != self._me.incarnation:
            return False
        if self.state is State.GREETING:
            return header.kind in (READY, BYE)
        # A later life of the peer says goodbye to what it is sent: that ends this link, and may.
        return header.sender == self.peer.incarnation or header.kind == BYE

    def _receive_data(self, header: Header, parts: Sequence[bytes]) -> Batch | None:
        if header.seq <= self._received_seq:
            self.stats.duplicates += 1
            return None
        if header.seq != self._received_seq + 1:
            self.lose("gap")
            return None
        batch = decode_batch(header, parts)
        if isinstance(batch, Fault):
            self.lose("corrupt")
            return None
        self._received_seq = header.seq
        self.stats.received_batches += 1
        self.stats.received_messages += len(batch.messages)
        self.stats.received_bytes += batch.size
        self._take_grant(header)
        return batch

    def _receive_ready(self, header: Header, parts: Sequence[bytes]) -> None:
        if self.state is State.LIVE:
            return  # the answer to a HELLO that we repeated before the first answer arrived
        greeting = decode_greeting(parts)
        if greeting is None:
            self.lose("corrupt")
        else:
            self._become_live(header, greeting)
            self._greet = False
            if agreed_version(self._options.version, header.version) is None:
                self.lose("version")
            elif greeting.name != self.dials:
                self.lose("misdialled")

    def _receive_bye(self, parts: Sequence[bytes]) -> None:
        reason = parts[1].decode("ascii", "replace") if len(parts) > 1 else ""
        self.lose(reason if reason in REASONS else "closed", tell=False)

    def _become_live(self, header: Header, greeting: Greeting) -> None:
        self.state = State.LIVE
        self.peer = Peer(greeting.name, greeting.kind, header.sender)
        self._version = min(self._options.version, header.version)
        self._peer_window = greeting.window
        self._grant = max(header.grant, greeting.window)

    def greeted_again(self, header: Header, now: float) -> bool:
        """Listener: whether this HELLO is the one that made this link, repeated; then READY goes again."""
        if header.link != self.number or header.sender != self.peer.incarnation:
            return False
        self._heard_at = now
        self._greet = True
        return True

    def consumed(self, size: int) -> None:
        """The handler is done with a batch of this size: its credit goes back to the sender."""
        self._consumed += size
        if self._consumed - self._granted_at >= self._options.window_bytes // 2:
            self._owe = True

    def _take_grant(self, header: Header) -> None:
        if header.ask:
            self._owe = True
        if header.grant <= self._grant:
            return
        self._grant = header.grant
        self._uncredited = 0
        if self._wanted:
            if self._fits(self._wanted):
                self._wanted = 0
                self.credit_returned = True
            else:
                self._ask = True

    # -- time and loss ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Called a few times per heartbeat: repeats HELLO, owes a heartbeat, judges silence."""
        options = self._options
        due = now - self._sent_at >= options.heartbeat_s
        if self.state is State.GREETING:
            self._greet = self._greet or due
        elif self.state is State.LIVE:
            if now - self._heard_at > options.expiry_s:
                self.lose("silent")
            elif due:
                self._owe = True

    def excuse(self, now: float) -> None:
        """Our own loop stood still: the peer gets a whole expiry again before it is judged."""
        self._heard_at = now

    def lose(self, reason: str, *, tell: bool = True) -> None:
        """End the link. The peer is told, unless it was the one to say so or cannot be reached."""
        if self.state is State.LOST:
            return
        was_live = self.state is State.LIVE
        self.state = State.LOST
        self.lost_reason = reason
        self._wanted = 0
        self._writer = BatchWriter()
        if tell and was_live and reason != "send_failed":
            self._bye = reason
        if was_live or reason != "closed":
            self.stats.lost[reason] = self.stats.lost.get(reason, 0) + 1


def farewell(me: Peer, header: Header, reason: str) -> list[Frame]:
    """A BYE to somebody there is no link with, in answer to what it sent."""
    return [
        encode_header(Header(header.version, BYE, me.incarnation, header.sender, header.link, 0, 0)),
        reason.encode(),
    ]
