"""Who receives a session's events: the attached gateway, or the shard's own egress while nobody is attached.

Rule 1. An attachment has a generation; an older one is void in everything it says. The newest wins.
Rule 2. `Attached` states what is covered, so it waits for the checkpoint that covers what was applied; no
        event leaves meanwhile. The gateway has claimed the journal already: our own egress is off first.
Rule 3. An egress number grows with each claim; what is known of it here is a lower bound for the next.
Rule 4. A session whose opening gateway is lost before it said anything is closed: its client never had it.
Rule 5. A takeover waits for the last word of the attachment that it replaces, a while: numbers are given once.
Rule 6. What was sent while the store was away, and its gateway could not journal before the client left, comes here
        (`Kept`) and is journaled before anything new; a gateway that attaches meanwhile is answered after that.
Rule 7. A session that ends as the link to its gateway breaks is left to that gateway for a while, which holds the
        client's socket and comes back: once we have journaled the end, all that the store has of it is deleted.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import inf

from duologue.bus.link import Link
from duologue.bus.messages import (
    Attach,
    Attached,
    Covered,
    Delivered,
    Kept,
    Numbered,
    OwnerChanged,
    Replaced,
    SessionOpened,
)
from duologue.fence import CommandNo, DeliveryId, Owner
from duologue.runtime import metrics
from duologue.session.backlog import Backlog
from duologue.session.core import commands as facts
from duologue.session.last_word import GLANCE_S, WORD_S, LastWord
from duologue.session.output import GatewaySink, Sink
from duologue.session.runner import DuplexSessionRunner
from duologue.store.ports import Head, Refused


class OwnEgress(Sink):
    """The shard as the egress of a detached session (see `detached`)."""

    @abstractmethod
    def start(self, after_s: float = 0.0) -> None:
        """Claim the journal, after a while; events are taken once that is done."""

    @abstractmethod
    def journal_for(self, message: Attach, word: LastWord | None, done: Callable[[int], None]) -> None:
        """Instead: have the backlog journaled by the claim of the gateway that attaches, once the last word of the
        attachment before it is heard, if that was there until now; then say how far the journal is whole."""

    @abstractmethod
    def stop(self) -> None:
        """Let go at once: somebody else is the egress now, or the session is over. Idempotent."""


class Numbering:
    """How far the session's journal is known to have come, here: a lower bound of what the store says."""

    __slots__ = ("backlog", "egress", "generation", "holed", "seq", "through")

    def __init__(self) -> None:
        self.egress = 0
        self.generation = 1
        self.seq = 0
        self.through = DeliveryId()
        self.holed = False
        """An egress has ended with what it had sent while the store was away: the journal lacks it for good."""
        self.backlog = Backlog()

    def claimed(self, journaled: int) -> None:
        """The next egress has claimed the journal, which is whole up to this seq: nothing older comes any more."""
        self.holed = self.holed or journaled < self.seq

    def reported(self, egress: int, through: DeliveryId, seq: int) -> None:
        self.egress = max(self.egress, egress)
        self.through = max(self.through, through)
        self.seq = max(self.seq, seq)


OwnerRefused = Callable[[Refused], None]
MakeEgress = Callable[[DuplexSessionRunner, Numbering, OwnerRefused], OwnEgress]


class Attachment:
    """See the module. It starts attached to the gateway that opened the session, as generation 1."""

    __slots__ = (
        "_attaching",
        "_back_by",
        "_greeting",
        "_journaled",
        "_make_egress",
        "_own",
        "_refused",
        "_runner",
        "_word",
        "acknowledged",
        "link",
        "numbering",
        "remote",
    )

    def __init__(
        self, runner: DuplexSessionRunner, link: Link | None, make_egress: MakeEgress, refused: OwnerRefused
    ) -> None:
        self._runner = runner
        self._make_egress = make_egress
        self._refused = refused
        self._own: OwnEgress | None = None
        self._attaching: Attach | None = None
        self._greeting: bytes | None = None
        self._word: LastWord | None = None
        self._journaled = 0
        """What of the journal is whole for the gateway that attaches, if that is more than its claim said."""
        self._back_by = -inf
        """Until then a gateway that was lost may come back for the end of the session."""
        self.numbering = Numbering()
        self.link = link
        self.acknowledged = False
        """The gateway has said anything of this session since it opened it."""
        self.remote = ""
        """Where the client connects from that was attached last; empty: nobody was, or its gateway does not say."""
        runner.turned = self._turned

    @property
    def generation(self) -> int:
        return self.numbering.generation

    @property
    def owner(self) -> Owner:
        return self._runner.owner

    @property
    def attached(self) -> bool:
        return self.link is not None

    @property
    def attaching(self) -> bool:
        """A gateway waits for its answer."""
        return self._attaching is not None or self._greeting is not None

    # -- open ------------------------------------------------------------------------------------------

    def opened(self, session_object: bytes) -> None:
        """Tell the gateway that the session is here, then hand its events over from now on."""
        self._greeting = session_object
        self._greet()

    def _greet(self) -> None:
        greeting, link = self._greeting, self.link
        if greeting is None or link is None:
            return
        if link.send(SessionOpened(self._runner.session_id, self.owner), [greeting]):
            self._greeting = None
            self._serve(link)

    def _serve(self, link: Link) -> None:
        self._runner.output.point_at(GatewaySink(link, self._runner.session_id, self.owner))
        self._runner.output.flush()

    # -- inherited -------------------------------------------------------------------------------------

    def inherited(self, head: Head, generation: int, wait_s: float) -> None:
        """Nobody is attached here yet. A gateway that held the attachment with the owner before comes within `wait_s`,
        or we number and journal on."""
        numbering = self.numbering
        numbering.generation = generation
        numbering.egress = head.egress
        numbering.reported(head.egress, head.last_delivery, head.last_seq)
        self.acknowledged = True
        self._journal_ourselves(wait_s)

    def _journal_ourselves(self, after_s: float = 0.0) -> None:
        self._own = self._make_egress(self._runner, self.numbering, self._refused)
        self._runner.output.point_at(self._own)
        self._own.start(after_s)

    def _leave_the_end(self) -> None:
        """Rule 7. What is not journaled yet waits here."""
        wait_s = self._back_by - asyncio.get_running_loop().time()
        self._back_by = -inf
        if wait_s > 0:
            self._stop_own()
            self._journal_ourselves(wait_s)

    # -- attach ----------------------------------------------------------------------------------------

    def attach(self, link: Link, message: Attach) -> None:
        """The gateway at `link` holds `message.generation` now."""
        numbering = self.numbering
        if message.generation < numbering.generation:
            link.send(Replaced(self._runner.session_id, numbering.generation))
            return
        before = None if self.link is None else (self.link, numbering.generation)
        if before is not None and message.generation > numbering.generation and self.link is not link:
            before[0].send(Replaced(self._runner.session_id, message.generation))
        self._stop_own()
        self.acknowledged = True
        self.remote = message.remote
        numbering.generation = message.generation
        numbering.egress = max(numbering.egress, message.egress)
        self.link = link
        if message.journaled >= 0:
            self._complete(message, before)
        numbering.reported(message.egress, message.through, message.seq)
        self._attaching = message
        self._greeting = None
        self._back_by = -inf
        self._runner.output.point_at(None)
        self._runner.post(facts.Attached(message.generation))
        if self._attaching is message and not self._covered():
            self._runner.post(facts.CheckpointWanted())

    def _complete(self, message: Attach, before: tuple[Link, int] | None) -> None:
        """Have the journal hold all that was sent before this attachment, which is answered after that. What its
        gateway has numbered itself it will have journaled yet."""
        numbering = self.numbering
        known = max(message.journaled, message.seq)
        numbering.backlog.journaled(known)
        missing = known < numbering.seq
        self._journaled = 0
        awaited = {} if self._word is None else self._word.awaited
        if before is not None and before[1] < message.generation and (missing or before[0] is not self.link):
            awaited[before[1]] = before[0]
        self._word = LastWord(awaited, WORD_S if missing else GLANCE_S) if awaited else None
        if self._word is not None or (missing and numbering.backlog):
            self._own = self._make_egress(self._runner, numbering, self._refused)
            self._own.journal_for(message, self._word, self._completed)
        else:
            numbering.claimed(known)

    def _completed(self, journaled: int) -> None:
        self._own = self._word = None
        self._journaled = journaled
        self.numbering.claimed(journaled)
        self._turned()

    def kept(self, message: Kept, bodies: Sequence[bytes]) -> None:
        """What the socket of a generation was sent, and its gateway could not journal."""
        if message.generation < self.generation and self._own is None:
            metrics.SESSION_KEPT.labels("late").inc(len(bodies))
            return
        numbering = self.numbering
        numbering.reported(0, message.ids[-1], message.first_seq + len(bodies) - 1)
        numbering.backlog.add(message.first_seq, list(zip(message.ids, bodies, strict=True)))
        word = self._word
        if word is not None and self.link is not None and numbering.backlog.last >= numbering.seq:
            word.never(self.link)

    def _covered(self) -> bool:
        machine = self._runner.machine
        return machine.closed or (not machine.input_waits and machine.applied == machine.covered)

    def _turned(self) -> None:
        if self._attaching is not None and self._own is None and self._covered():
            self._answer()
        elif self._back_by > -inf and self._runner.closing:
            self._leave_the_end()

    def on_credit(self) -> None:
        """The gateway's link takes more again."""
        if self._greeting is not None:
            self._greet()
        elif self._attaching is not None:
            self._turned()
        else:
            self._runner.output.flush()

    @property
    def wants_credit(self) -> bool:
        return self._attaching is not None or self._greeting is not None or self._runner.output.stuck

    def _answer(self) -> None:
        """`Attached`, and from then on the events, oldest unacknowledged first."""
        message, link, machine = self._attaching, self.link, self._runner.machine
        if message is None or link is None:
            return
        answer = Attached(
            self._runner.session_id,
            message.generation,
            self.owner,
            machine.applied,
            machine.last_client_event_id,
            machine.input_audio_end_ms,
            self.numbering.seq,
            self.numbering.through,
            self._runner.output.end,
            self._journaled,
        )
        items = machine.items_for_gap() if message.after_gap or self.numbering.holed else b""
        if not link.send(answer, [machine.session_object(), items]):
            return  # asked again by `on_credit`
        self._attaching = None
        self._serve(link)

    # -- detach ----------------------------------------------------------------------------------------

    def detach(self, generation: int, *, clean: bool = False) -> None:
        """The socket of `generation` is gone. For any other generation it is no more than its last word."""
        if self._word is not None:
            self._word.said(generation)
        if generation != self.generation or self.link is None:
            return
        self.link = None
        self._attaching = None
        self._greeting = None
        self.acknowledged = True
        self._stop_own()
        self._journal_ourselves()
        self._runner.post(facts.Detached(generation, clean))

    def gateway_lost(self, link: Link, back_s: float = 0.0) -> None:
        """The link is gone, and with it whatever socket was behind it; or its gateway lives, and is back within
        `back_s`."""
        if self._word is not None:
            self._word.never(link)
        if self.link is not link:
            return
        abandoned = not self.acknowledged
        self.detach(self.generation)
        if abandoned:
            self._runner.post(facts.CloseRequested("open_abandoned"))
            return
        self._back_by = asyncio.get_running_loop().time() + back_s
        if self._runner.closing:
            self._leave_the_end()

    def _stop_own(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.stop()

    def stop(self) -> None:
        """The session is over, here at least."""
        self._stop_own()
        self._attaching = None

    # -- what the egress says --------------------------------------------------------------------------

    def delivered(self, message: Delivered) -> None:
        self.acknowledged = True
        late = message.egress < self.numbering.egress
        self.numbering.reported(message.egress, message.through, message.seq)
        self._runner.delivered(self._short_of_the_end(message.through) if late else message.through)

    def _short_of_the_end(self, through: DeliveryId) -> DeliveryId:
        """An egress that has been followed says no more that the session may go: its successor may be replaying the
        journal just now, and acknowledges the end itself when that is done."""
        end = self._runner.output.end
        return through if end is None else min(through, DeliveryId(end.of or self.owner.number, end.n - 1))

    def tell_numbering(self, link: Link) -> None:
        """To a gateway that asks on behalf of a client."""
        link.send(Numbered(self._runner.session_id, self.numbering.seq))

    def tell(self, message: Covered | OwnerChanged) -> None:
        """A message to the attached gateway that needs no credit; nobody hears it when there is none."""
        if self.link is not None:
            self.link.send_lazily(message)

    def current(self, no: CommandNo) -> bool:
        """Whether a client command comes from the attachment that holds the session."""
        return no.generation == self.numbering.generation
