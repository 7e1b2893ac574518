"""The shard's own egress of a detached session: it numbers and journals on, so a resume finds everything.

Rule 1. Nothing is taken before the journal is claimed; what was handed over before and not acknowledged is
        offered again, and the claim tells what of it is in the journal already.
Rule 2. A claim that is too old (`generation`) yields to the gateway that came first: it will attach. If it
        has not after `YIELD_S`, it never will, and the journal is claimed from it.
Rule 3. An acknowledgement means journaled: there is no socket.
Rule 4. What a gateway had sent and could not journal (`backlog`) comes first. A gateway that attaches before that is
        done waits for it, a while: it is written under the number that this one has claimed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from duologue.bus.messages import Attach, Delivered
from duologue.delivery.breaker import StoreBreaker
from duologue.delivery.egress import Egress, Frame, Put
from duologue.delivery.pump import Pump, Pumps
from duologue.delivery.pump import Sink as JournalSink
from duologue.fence import Owner
from duologue.session.attachment import Numbering, OwnEgress, OwnerRefused
from duologue.session.background import Background
from duologue.session.last_word import LastWord
from duologue.session.output import Event
from duologue.session.runner import DuplexSessionRunner
from duologue.store.ports import Head, Journal, JournalAppender, JournalRefused, Refused, StoreUnavailable

_log = logging.getLogger("duologue.session")

YIELD_S: Final = 2.0
KEPT_S: Final = 2.0
"""How long an attachment waits at most for what was sent before it."""
_RETRY_FIRST_S: Final = 0.1
_RETRY_LAST_S: Final = 1.0


class Detacher:
    """Makes the egresses of detached sessions; what they share."""

    def __init__(
        self,
        journal: Journal,
        appender: JournalAppender,
        background: Background,
        clock: Callable[[], float],
        *,
        breaker: StoreBreaker | None = None,
        yield_s: float = YIELD_S,
    ) -> None:
        self.journal = journal
        self.appender = appender
        self.background = background
        self.clock = clock
        self.breaker = breaker or StoreBreaker()
        self.pumps = Pumps()
        """To be ticked every 50 ms."""
        self.yield_s = yield_s

    def make(self, runner: DuplexSessionRunner, numbering: Numbering, refused: OwnerRefused) -> DetachedEgress:
        return DetachedEgress(self, runner, numbering, refused)


class DetachedEgress(OwnEgress, JournalSink):
    """One detached session's. See the module."""

    def __init__(
        self, shared: Detacher, runner: DuplexSessionRunner, numbering: Numbering, refused: OwnerRefused
    ) -> None:
        self._shared = shared
        self._runner = runner
        self._numbering = numbering
        self._refused = refused
        self._pump: Pump | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._stopped = False

    # -- for the attachment ----------------------------------------------------------------------------

    def start(self, after_s: float = 0.0) -> None:
        self._claim_soon(self._numbering.generation, after_s)

    def stop(self) -> None:
        self._stopped = True
        if self._claiming is not None:
            self._claiming.cancel()
            self._claiming = None
        self._drop_pump()

    def take(self, events: Sequence[Event]) -> bool:
        pump = self._pump
        if pump is None:
            return False
        put = pump.put(self._runner.owner, [delivery for delivery, _ in events], [body for _, body in events])
        return put is Put.TAKEN

    def invalidate(self, response_id: str, through_epoch: int) -> None:
        if self._pump is not None:
            self._pump.invalidate(self._runner.owner, response_id, through_epoch)

    # -- claiming --------------------------------------------------------------------------------------

    def _claim_soon(self, generation: int, delay_s: float) -> None:
        work = self._claim(generation, delay_s)
        self._claiming = self._shared.background.start(work, f"claim of {self._runner.session_id}")

    async def _claim(self, generation: int, delay_s: float) -> None:
        """`generation` 0 claims from whoever has it."""
        await asyncio.sleep(delay_s)
        claimant = secrets.token_hex(8)
        retry_s = _RETRY_FIRST_S
        while True:
            try:
                head = await self._shared.journal.claim(
                    self._runner.session_id,
                    owner=self._runner.owner,
                    egress=self._numbering.egress + 1,
                    generation=generation,
                    claimant=claimant,
                )
            except StoreUnavailable:
                await asyncio.sleep(retry_s)
                retry_s = min(_RETRY_LAST_S, retry_s * 2)
                continue
            if isinstance(head, Head):
                self._numbering.egress = head.egress
                journaled = await self._journal_kept(head.egress, head.last_seq)
                self._claiming = None
                return self._claimed(head, journaled)
            self._claiming = None
            return self._not_claimed(head)

    async def _journal_kept(self, egress: int, journaled: int) -> int:
        """The last seq before which the journal lacks nothing, once it has what was kept."""
        numbering, backlog = self._numbering, self._numbering.backlog
        backlog.journaled(journaled)
        whole = backlog.bridges(journaled, numbering.seq)
        to = numbering.seq
        written = await backlog.write(self._shared.appender, self._runner.session_id, self._runner.owner, egress)
        return to if whole and written else journaled

    def journal_for(self, message: Attach, word: LastWord | None, done: Callable[[int], None]) -> None:
        work = self._journal_for(message, word, done)
        self._claiming = self._shared.background.start(work, f"what was kept of {self._runner.session_id}")

    async def _journal_for(self, message: Attach, word: LastWord | None, done: Callable[[int], None]) -> None:
        numbering = self._numbering
        journaled = max(message.journaled, message.seq)
        try:
            async with asyncio.timeout(KEPT_S):
                if word is not None:
                    await word.heard()
                if journaled < numbering.seq:
                    journaled = await self._journal_kept(message.egress, journaled)
        except TimeoutError:
            _log.warning("session %s: not all of %d to %d is journaled", message.session_id, journaled, numbering.seq)
        self._claiming = None
        done(journaled)

    def _claimed(self, head: Head, journaled: int) -> None:
        shared, numbering = self._shared, self._numbering
        numbering.claimed(journaled)
        egress = Egress(
            self._runner.session_id,
            self._runner.owner,
            head,
            shared.breaker,
            through=(numbering.seq, numbering.through),
            detached=True,
        )
        self._pump = Pump(egress, shared.appender, self, shared.pumps, shared.clock)
        self._runner.output.flush()

    def _not_claimed(self, refusal: JournalRefused) -> None:
        if refusal.reason == "generation":
            self._numbering.egress = max(self._numbering.egress, refusal.head.egress)
            self._claim_soon(0, self._shared.yield_s)
        else:
            self._refused(Refused(refusal.reason, refusal.head.owner))

    # -- for the pump ----------------------------------------------------------------------------------

    def room(self) -> bool:
        return True

    def write(self, frames: Sequence[Frame]) -> None:
        """They are in the journal; nobody reads along."""

    def delivered(self, ack: Delivered) -> None:
        self._numbering.reported(ack.egress, ack.through, ack.seq)
        self._runner.delivered(ack.through)

    def stopped(self, why: str) -> None:
        """Somebody else claimed the journal: a gateway that is about to attach, or that died over it."""
        self._drop_pump()
        if self._stopped:
            return
        if why == "gone":
            self._refused(Refused("gone"))
            return
        _log.info("session %s: the journal is not ours any more (%s)", self._runner.session_id, why)
        self._runner.output.point_at(self)
        self._claim_soon(0, self._shared.yield_s)

    def owner_replaced(self, owner: Owner) -> None:
        self._refused(Refused("owner", owner))

    def _drop_pump(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.close()
