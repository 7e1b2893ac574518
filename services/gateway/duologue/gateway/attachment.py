"""One session attached to one socket: commands to its shard, events to its client.

Rule 1. Everything here is synchronous and called from the event loop; what has to wait is told by `moved`.
Rule 2. Commands are numbered (generation, n) and kept until covered. Without credit, or with too much
        un-covered, nothing is taken and the caller reads no further frame.
Rule 3. What the shard sent before it answered this attachment belongs to an older one and is dropped: it is
        sent again, since no egress has acknowledged it.
Rule 4. It ends once, by the first of: the session's terminal event, a takeover, the loss of the shard without an heir,
        the socket.
Rule 5. Without a shard (`homeless`) it takes commands on, and keeps them for the one that it moves to (`rehoming`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import (
    AnyMessage,
    Attach,
    Attached,
    ClientInput,
    Covered,
    Delivered,
    Deliveries,
    Detach,
    Invalidate,
    OpenSession,
    OwnerChanged,
    Replaced,
    SessionOpened,
    SessionRefused,
    WantCovered,
)
from duologue.fence import CommandNo, DeliveryId, Owner
from duologue.gateway.announce import replaced
from duologue.gateway.context import Gateway
from duologue.gateway.errors import local_error
from duologue.gateway.outbound import Outbound
from duologue.gateway.uncovered import Uncovered
from duologue.gateway.wire import LINGER_S, Wire
from duologue.protocol.duplex import Dialect, DuplexCommand, encode_command
from duologue.store.ports import Head, SessionRecord

TRIM_EVERY_S: Final = 5.0
"""Clients may acknowledge every event; the journal is trimmed at the first, and then so often."""
_RETRY_AFTER_MS: Final = 1000


class End(Enum):
    """Why an attachment is over."""

    terminal = "terminal"
    replaced = "replaced"
    shard_lost = "shard_lost"
    fault = "fault"
    socket = "socket"


class Answer(msgspec.Struct, frozen=True):
    """What a shard said to an open or an attach."""

    message: SessionOpened | SessionRefused | Attached
    frames: tuple[bytes, ...]


class Attachment:
    """See the module."""

    def __init__(
        self,
        gateway: Gateway,
        wire: Wire,
        session_id: str,
        dialect: Dialect,
        principal: str,
        generation: int,
        link: Link,
    ) -> None:
        self.gateway = gateway
        self.wire = wire
        self.session_id = session_id
        self.dialect = dialect
        self.principal = principal
        self.generation = generation
        self.link = link
        self.model = ""
        """For the audit; empty where it is not known."""
        self.remote = ""
        """Where its client connects from; each shard that has the session is told."""
        self.record: SessionRecord | None = None
        """As the store has it for this generation, once that is known."""
        self.since = gateway.now()
        self.owner = Owner()
        self.uncovered = Uncovered(gateway.settings.uncovered_bytes)
        self.ended: End | None = None
        self.moved = asyncio.Event()
        """Set whenever something that a waiting reader or replay may wait for has changed."""
        self.outbound = Outbound(self, wire)
        self.homeless = False
        self.on_homeless: Callable[[], None] | None = None
        """Somebody who finds it another shard. None: it is not far enough to survive the loss of its own."""
        self._answer: asyncio.Future[Answer | None] | None = None
        self._answered = False
        self._n = 0
        self._want_covered = False
        self._trim_to = 0
        self._made: DeliveryId | None = None
        """The last event that a checkpoint contains, once that was said: what comes after it stays in the journal."""
        self._trimmed_at = float("-inf")
        self._trim_timer: asyncio.TimerHandle | None = None

    # -- opening and attaching ----------------------------------------------------------------------------

    async def open(self, message: OpenSession, session: bytes, timeout_s: float) -> Answer | None:
        """Ask the shard for a new session. None: no answer in time, no credit, or no shard any more."""
        return await self._ask(message, (session,), timeout_s)

    async def attach(self, message: Attach, timeout_s: float) -> Answer | None:
        """Ask the shard for a session that it has. None: as `open`."""
        return await self._ask(message, (), timeout_s)

    async def _ask(self, message: OpenSession | Attach, frames: tuple[bytes, ...], timeout_s: float) -> Answer | None:
        self._answer = asyncio.get_running_loop().create_future()
        message = msgspec.structs.replace(message, remote=self.remote)
        try:
            async with asyncio.timeout(timeout_s):
                while self.ended is None and not self.link.send(message, frames):
                    await self.wait()
                return await self._answer if self.ended is None else None
        except TimeoutError:
            return None
        finally:
            self._answer = None

    def begin(self, owner: Owner, head: Head) -> None:
        """The egress of this session is ours: number from here on. Nothing is written before `go_live`."""
        self.owner = owner
        self.outbound.begin(owner, head)

    def go_live(self) -> None:
        """What was replayed, if anything, is written: events may flow."""
        self.outbound.go_live()

    async def wait(self) -> None:
        """Until something moved. Ask again then."""
        self.moved.clear()
        await self.moved.wait()

    # -- from the client ----------------------------------------------------------------------------------

    def forward(self, command: DuplexCommand) -> bool:
        """Give one command to the shard. False: not now (see `wait`); nothing was taken."""
        if self.uncovered.full:
            if not self._want_covered and not self.homeless:
                self._want_covered = True
                self.gateway.tally.uncovered_full += 1
                self.link.send(WantCovered(self.session_id))
            return False
        bare, media = command.detach()
        body = encode_command(bare)
        no = CommandNo(self.generation, self._n + 1)
        if not self.homeless and not self.link.send(ClientInput(self.session_id, no, body), media):
            return False
        self._n += 1
        self.uncovered.keep(no, body, media)
        return True

    def client_has(self, seq: int) -> bool:
        """The client acknowledged `seq`. False: that was never sent."""
        if seq > self.outbound.seq:
            return False
        if seq > self._trim_to:
            self._trim_to = seq
            wait = self._trimmed_at + TRIM_EVERY_S - self.gateway.now()
            if wait <= 0:
                self._trim()
            elif self._trim_timer is None:
                self._trim_timer = asyncio.get_running_loop().call_later(wait, self._trim)
        return True

    def _trim(self) -> None:
        self._trim_timer = None
        self._trimmed_at = self.gateway.now()
        journal, session_id, through, made = self.gateway.journal, self.session_id, self._trim_to, self._made
        if made is not None:
            self.gateway.chores.add("trim", session_id, lambda: journal.trim(session_id, through, made))

    async def trim_now(self) -> None:
        """Carry out what the client acknowledged. Raises `StoreUnavailable`."""
        if self._trim_to and self._made is not None:
            await self.gateway.journal.trim(self.session_id, self._trim_to, self._made)

    # -- acknowledgements ---------------------------------------------------------------------------------

    def owes(self, delivered: Delivered) -> None:
        """Events are on the socket that the shard still keeps: tell it, with whatever goes there next, or at once where
        nobody else knows their numbers. What the client sends from here on stands behind it on the link."""
        if self.gateway.breaker.open:
            self.link.send(delivered)
        else:
            self.link.send_lazily(delivered)

    # -- from the shard -----------------------------------------------------------------------------------

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        if link is not self.link or self.ended is not None:
            return
        if isinstance(message, Deliveries):
            if self._answered:
                self.outbound.put(message, frames)
            else:
                self.gateway.tally.stale["older attachment"] += len(message.events)
        elif isinstance(message, Covered):
            self._made = message.made if self._made is None else max(self._made, message.made)
            if self.uncovered.cover(message.through):
                self._want_covered = False
                self.moved.set()
        elif isinstance(message, Invalidate):
            self.outbound.invalidate(message)
        elif isinstance(message, SessionOpened | SessionRefused | Attached):
            self._on_answer(message, frames)
        elif isinstance(message, Replaced):
            if message.generation > self.generation:
                self.replaced()
        elif isinstance(message, OwnerChanged):
            if not self.outbound.ending and (message.owner.number == 0 or message.owner > self.owner):
                self.lose_shard("it has the session no more")

    def _on_answer(self, message: SessionOpened | SessionRefused | Attached, frames: Sequence[bytes]) -> None:
        if isinstance(message, Attached) and message.generation != self.generation:
            return
        if self._answer is not None and not self._answer.done():
            self._answered = not isinstance(message, SessionRefused)
            if isinstance(message, Attached):  # here and now: events may stand behind it in the same batch
                self.outbound.known(message.seq, message.through)
                if message.end is not None:
                    self.outbound.ends(message.owner, message.end)
            self._answer.set_result(Answer(message, tuple(frames)))

    def on_credit(self) -> None:
        self.moved.set()

    def on_link_lost(self, link: Link, reason: str) -> None:
        if link is self.link:
            self.lose_shard(reason)

    def egress_stopped(self, why: str) -> None:
        """Nothing more of this attachment is journaled: replaced | gone | conflict | overflow."""
        if why == "overflow":
            self.gateway.tally.unnumbered_full += 1
            error = self._error("output_backpressure", "too many events wait for this client")
            self._finish(End.fault, error, 1013, "output_backpressure")
        elif why == "conflict":
            error = self._error("internal_error", "the numbering of this session is broken")
            self._finish(End.fault, error, 1011, "internal_error")
        elif why == "replaced":
            self.gateway.chores.add("look_up", self.session_id, self._look_up)
        else:
            self.lose_shard(f"its journal is {why}")

    async def _look_up(self) -> None:
        """Somebody else has claimed the journal: a newer attachment, or the shard."""
        found = await self.gateway.sessions.look_up(self.session_id)
        if found is not None and found.record.generation > self.generation:
            self.replaced()
        else:
            self.lose_shard("it took the journal back")

    # -- endings ------------------------------------------------------------------------------------------

    def terminal(self, code: int, reason: str) -> None:
        """The session's last event is written; what is behind it, if anything, is nobody's."""
        self.outbound.settle()
        self.link.flush()
        self._finish(End.terminal, b"", code, reason)

    def replaced(self, *, here: bool = False) -> None:
        """A newer attachment has the session: tell this socket, and do not wait for it. Its shard hears the last word
        of this one, and numbers nothing before that; `here`: the newer one speaks to it over the same link."""
        if self.ended is not None:
            return
        self.gateway.tally.takeovers += 1
        self.outbound.settle()
        notice = b"" if self.dialect.is_openai else replaced(self.session_id, self.generation)
        self._finish(End.replaced, notice, 1000, "session_replaced", self.gateway.settings.takeover_linger_s)
        if not here:
            self.gateway.links.departures.detach(self.link, Detach(self.session_id, self.generation))

    def lose_shard(self, why: str) -> None:
        """The owner of the session is gone for us: it has an heir, or comes back."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
        if self.on_homeless is None:
            self.give_up(why)
        elif not self.homeless and self.ended is None:
            self.homeless = True
            self.on_homeless()

    def move(self, link: Link, owner: Owner, head: Head) -> None:
        """Another shard has the session, or its own can be reached again; the journal is claimed anew."""
        self.link, self.owner = link, owner
        self._answered = self._want_covered = False
        self.outbound.begin_again(owner, head)

    async def settle(self, applied: CommandNo) -> bool:
        """Send what the shard has not applied, and what came meanwhile. False: it is lost again, or all is over."""
        link, uncovered = self.link, self.uncovered
        uncovered.cover(applied)
        last = CommandNo()
        while (kept := uncovered.after(last)) is not None:
            if self.ended is not None or self.link is not link:
                return False
            if link.send(ClientInput(self.session_id, kept.no, kept.command), kept.frames):
                last = kept.no
            else:
                await self.wait()
        self.homeless = False
        self.moved.set()
        return True

    def give_up(self, why: str) -> None:
        """No shard has the session for us. The client may come back."""
        self._finish(
            End.shard_lost,
            self._error("shard_lost", f"the session's shard was lost: {why}"),
            1012,
            "shard_lost",
        )

    def socket_gone(self) -> None:
        """The socket has ended, is about to, or serves another purpose now: it is left as it is."""
        self._finish(End.socket, b"", 0, "")

    def _error(self, code: str, message: str) -> bytes:
        return local_error(code, message, retry_after_ms=_RETRY_AFTER_MS, openai=self.dialect.is_openai)

    def _finish(self, end: End, notice: bytes, code: int, reason: str, linger_s: float = LINGER_S) -> None:
        if self.ended is not None:
            return
        self.ended = end
        self.outbound.close()
        if end is not End.terminal and (kept := self.outbound.leftover()):
            self.gateway.links.departures.keep(self.link, self.session_id, self.generation, kept)
        self.uncovered.clear()
        if self._trim_timer is not None:
            self._trim_timer.cancel()
            self._trim_timer = None
            self._trim()
        self.gateway.attachments.drop(self)
        if notice:
            self.wire.write(notice)
        if code:
            self.wire.finish(code, reason, linger_s)
        self.moved.set()

    def leave(self) -> None:
        """Nobody uses it any more. Tells the shard and the store, unless it was over for them already."""
        self.socket_gone()
        if self.ended is End.terminal or self.ended is End.replaced:
            return
        self.gateway.attachments.drop(self)
        detach = Detach(self.session_id, self.generation, self.wire.clean)
        self.gateway.links.departures.detach(self.link, detach)
        sessions, session_id, generation = self.gateway.sessions, self.session_id, self.generation
        self.gateway.chores.add("let_go", session_id, lambda: sessions.let_go(session_id, generation))
