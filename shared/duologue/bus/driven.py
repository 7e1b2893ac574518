"""A `Link` on top of one `LinkMachine` and one connection: what every adapter hands to its handler.

Rule 1. Writes happen in `flush` only, once per turn of the loop; a connection that takes no more keeps one
        unwritten list of parts, and messages sent meanwhile join the next batch.
Rule 2. The handler's own errors go to the loop's exception handler; they end neither the link nor the loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from duologue.bus.codec import Batch, Header
from duologue.bus.link import Frame, Link, LinkHandler, PeerLost
from duologue.bus.machine import LIVE, LinkMachine, State
from duologue.bus.messages import AnyMessage


class Written(Enum):
    """What became of a multipart message that was given to a connection."""

    SENT = "sent"
    BLOCKED = "blocked"
    """Nothing was taken; the driver keeps it and tries again when told to."""
    GONE = "gone"
    """There is nobody at the other end any more."""


class Connection(ABC):
    """The way to one peer, under one link."""

    @abstractmethod
    def write(self, parts: Sequence[Frame]) -> Written:
        """Give one multipart message to the wire, whole or not at all. Never blocks."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it. Idempotent."""


class Surroundings(ABC):
    """What a link needs of its endpoint."""

    handler: LinkHandler

    @abstractmethod
    def now(self) -> float:
        """Monotonic seconds."""

    @abstractmethod
    def want_flush(self, link: DrivenLink) -> None:
        """Have `flush` called at the end of this turn."""

    @abstractmethod
    def want_flush_soon(self, link: DrivenLink) -> None:
        """The same within the gathering time, together with others."""

    @abstractmethod
    def got_stuck(self, link: DrivenLink) -> None:
        """The connection takes no more now: `flush` again when it may."""

    @abstractmethod
    def went_live(self, link: DrivenLink) -> None:
        """Called before the handler's `on_ready`."""

    @abstractmethod
    def ended(self, link: DrivenLink) -> None:
        """Called once, before the handler's `on_lost`, for links that were never live too."""

    @abstractmethod
    def handler_failed(self, error: Exception, link: DrivenLink) -> None:
        """The handler raised: report it."""


class DrivenLink(Link):
    """See the module. Made by the endpoint, given to the handler once live."""

    def __init__(self, machine: LinkMachine, connection: Connection, around: Surroundings) -> None:
        self.machine = machine
        self.connection = connection
        self.peer = machine.peer
        self._around = around
        self._unwritten: deque[list[Frame]] = deque()
        self.was_live = False
        self._end_told = False
        self._exhausted_since: float | None = None
        self.flush_wanted = False
        self.lazy = False
        """`flush` is wanted, but not in this turn."""

    # -- the port --------------------------------------------------------------------------------------

    def send(self, message: AnyMessage, frames: Sequence[Frame] = ()) -> bool:
        taken = self.machine.send(message, frames)
        if not taken:
            self._refused()
        elif not self.flush_wanted or self.lazy:
            self._around.want_flush(self)
        return taken

    def send_lazily(self, message: AnyMessage, frames: Sequence[Frame] = ()) -> bool:
        taken = self.machine.send(message, frames)
        if not taken:
            self._refused()
        elif not self.flush_wanted:
            self._around.want_flush_soon(self)
        return taken

    def _refused(self) -> None:
        if self.machine.state is State.LOST:
            # Not told from here: the caller is in the middle of using the link, `on_lost` comes in its turn.
            if not self._end_told:
                self._around.want_flush(self)
        elif self.machine.blocked:
            if self._exhausted_since is None:
                self._exhausted_since = self._around.now()
                self.machine.stats.credit_exhausted += 1
            self._around.want_flush(self)

    def flush(self) -> None:
        """Write what is queued. Also where a loss found while sending is told."""
        self.flush_wanted = self.lazy = False
        self._write_out()
        self._tell()

    def drop(self, reason: str) -> None:
        self.machine.lose(reason)
        self.flush()

    # -- for the endpoint ------------------------------------------------------------------------------

    @property
    def stuck(self) -> bool:
        """The connection took no more; `flush` again when it may."""
        return bool(self._unwritten)

    def end(self, reason: str, *, tell: bool = True) -> None:
        """Give up: what is queued goes out first, then the goodbye (if `tell`)."""
        if tell:
            self._write_out()
        self.machine.lose(reason, tell=tell)
        self.flush()

    def announce(self) -> None:
        """Tell the handler of a link that was accepted, after its READY is on the way."""
        self.flush()

    def heard(self, header: Header, parts: Sequence[bytes]) -> None:
        """One multipart message from this link's connection."""
        batch = self.machine.receive(header, parts, self._around.now())
        if batch is not None:
            self._hand_over(batch)
        self._tell()
        if self.machine.pending and not self.flush_wanted:
            self._around.want_flush(self)

    def tick(self, now: float) -> None:
        self.machine.tick(now)
        if self.machine.pending or self.machine.state is State.LOST:
            self.flush()

    # -- inside ----------------------------------------------------------------------------------------

    def _hand_over(self, batch: Batch) -> None:
        on_message = self._around.handler.on_message
        machine = self.machine
        for message, frames in zip(batch.messages, batch.frames, strict=True):
            if machine.state is not LIVE:
                return
            try:
                on_message(self, message, frames)
            except Exception as error:
                self._around.handler_failed(error, self)
        machine.consumed(batch.size)

    def _write_out(self) -> None:
        write = self.connection.write
        unwritten = self._unwritten
        while unwritten:
            outcome = write(unwritten[0])
            if outcome is Written.SENT:
                unwritten.popleft()
            elif outcome is Written.GONE:
                return self._gone()
            elif self.machine.state is State.LOST:
                return unwritten.clear()  # nobody waits for the rest of a lost link
            else:
                return self._around.got_stuck(self)
        for parts in self.machine.take(self._around.now()):
            outcome = Written.BLOCKED if unwritten else write(parts)
            if outcome is Written.GONE:
                return self._gone()
            if outcome is Written.BLOCKED:
                # Kept beyond this turn: what the caller lent us must not change under us.
                unwritten.append([bytes(part) for part in parts])
                self.machine.stats.blocked += 1
        if unwritten:
            self._around.got_stuck(self)
        return None

    def _gone(self) -> None:
        self._unwritten.clear()
        self.machine.lose("send_failed", tell=False)

    def _tell(self) -> None:
        machine = self.machine
        if machine.state is State.LIVE:
            if not self.was_live:
                self.was_live = True
                self.peer = machine.peer
                self._around.went_live(self)
                self._call(self._around.handler.on_ready)
            if machine.credit_returned:
                machine.credit_returned = False
                self._credit_is_back()
                self._call(self._around.handler.on_credit)
        if machine.state is State.LOST and not self._end_told:
            self._end_told = True
            self._credit_is_back()
            if machine.pending:
                self._write_out()
            self._unwritten.clear()
            self.connection.close()
            self._around.ended(self)
            if self.was_live:
                lost = PeerLost(self.peer, machine.lost_reason)
                self._call(lambda link: self._around.handler.on_lost(link, lost))

    def _credit_is_back(self) -> None:
        if self._exhausted_since is not None:
            self.machine.stats.credit_exhausted_seconds += self._around.now() - self._exhausted_since
            self._exhausted_since = None

    def _call(self, callback: Callable[[Link], None]) -> None:
        try:
            callback(self)
        except Exception as error:
            self._around.handler_failed(error, self)
