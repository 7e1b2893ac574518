"""DuplexSessionManager: every session of a shard, from its admission to its release.

Rule 1. Input is refused before the mailbox: what a session may not buffer is never queued, and the client
        hears of it in its place in the order.
Rule 2. A session takes one slot and gives it back, whatever its ending.
Rule 3. What a gateway says of a session that is not here is answered by `OwnerChanged`: ask the store.
Rule 4. Nothing of one session's trouble reaches another; the store is never waited for on the way of a unit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import (
    Adopt,
    AnyMessage,
    AskNumbered,
    Attach,
    ClientInput,
    Delivered,
    Detach,
    Kept,
    Numbered,
    OpenSession,
    OwnerChanged,
    WantCovered,
)
from duologue.fence import Owner
from duologue.protocol.duplex import AppendAudio, Commit, decode_command
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.session.admission import Admission
from duologue.session.core import commands as facts
from duologue.session.core.limits import SessionLimits
from duologue.session.inheriting import MAX_WAITING, Inheritance, Inherited
from duologue.session.opening import Opened, Opener, Opening
from duologue.session.refusals import refused
from duologue.session.resident import Resident
from duologue.session.surroundings import Surroundings
from duologue.session.vitals import Vitals

_log = logging.getLogger("duologue.session")

RETRY_INPUT_MS = 500
"""Told with `input_backpressure`: a unit or two are consumed in that time."""
_LIMITED = (AppendAudio, Commit)
"""Commands of which only so much may wait."""

BEHIND_S = 5.0
"""For so long after sound was refused because its model is too slow, a session counts as behind."""


class DuplexSessionManager:
    """See the module. Its `on_...` methods are called from the bus, in the loop's thread."""

    def __init__(
        self,
        *,
        admission: Admission,
        opener: Opener,
        around: Surroundings,
        limits: SessionLimits,
    ) -> None:
        self.admission = admission
        self.ended: dict[str, int] = {}
        """Sessions that are over, by reason."""
        self.late = 0
        """Messages for sessions that are not here, or of a void attachment."""
        self._opener = opener
        self._around = around
        self._limits = limits
        self._opening: dict[str, Opening] = {}
        self._residents: dict[str, Resident] = {}
        self._moved = asyncio.Event()
        self._ending: facts.CloseRequested | None = None
        self.takes_in: Callable[[], None] = lambda: None
        """Called when a session more is held: it is to be noted where others find it."""
        self.inheritance: Inheritance
        """Set once, before anything is taken over."""
        self.vitals: Vitals
        self.look_again: Callable[[], None] = lambda: None
        """Called when somebody asks about a shard that is not known to be dead: it may have died just now."""
        self._asked: dict[str, str] = {}
        """Sessions that are asked for, and of which shards, until the registry has answered."""

    def __len__(self) -> int:
        return len(self._residents)

    @property
    def residents(self) -> Sequence[Resident]:
        return tuple(self._residents.values())

    @property
    def opening(self) -> int:
        return len(self._opening)

    # -- for an operator -------------------------------------------------------------------------------

    def resident(self, session_id: str) -> Resident | None:
        """The session, if it is here."""
        return self._residents.get(session_id)

    def kill(self, session_id: str, reason: str, close_code: int) -> bool:
        """End the session; one that is being opened ends as it opens. False: it is not here."""
        resident = self._residents.get(session_id)
        if resident is not None:
            resident.runner.post(facts.CloseRequested(reason, close_code))
            return True
        opening = self._opening.get(session_id)
        if opening is not None:
            opening.abandoned = True
        return opening is not None

    # -- open ------------------------------------------------------------------------------------------

    def on_open(self, link: Link, message: OpenSession, frames: Sequence[bytes]) -> None:
        session_id = message.session_id
        try:
            if session_id in self._opening or session_id in self._residents:
                raise RealtimeProtocolError("session_exists", "the session is open already")
            opening = self._opener.examine(link, message, frames[0] if frames else b"")
            if self._behind(opening.pipeline.name):
                self.admission.turn_away_behind()
            self.admission.take(session_id, opening.pipeline.name)
        except RealtimeProtocolError as error:
            link.send(*refused(session_id, error, message.dialect))
            return
        self._opening[session_id] = opening
        self.takes_in()
        self._opener.start(opening, self._opened, self._not_opened)

    def _behind(self, pipeline: str) -> bool:
        """The model is too slow for most of its sessions, two at least: one alone may be its client's doing."""
        machines = [r.runner.machine for r in self._residents.values() if r.pipeline == pipeline]
        behind = sum(0 <= m.observed.behind_at >= m.time - BEHIND_S for m in machines)
        return behind >= 2 and 2 * behind >= len(machines)

    def _opened(self, opened: Opened) -> None:
        """The record is ours and the machine is made: from here on the session runs."""
        opening = opened.opening
        session_id = opening.session_id
        del self._opening[session_id]
        resident = Resident(opened, self._around, self._over)
        self._residents[session_id] = resident
        resident.start(opened)
        if self._ending is not None:
            resident.runner.post(self._ending)
        if opening.abandoned:
            resident.attachment.gateway_lost(opening.link)
        for message, frames in opening.early:
            self.on_input(opening.link, message, frames)

    def _not_opened(self, opening: Opening, error: RealtimeProtocolError) -> None:
        del self._opening[opening.session_id]
        self._moved.set()
        self.admission.give_back(opening.session_id)
        self.admission.count_refusal(error.code)
        if not opening.abandoned:
            opening.link.send(*refused(opening.session_id, error, opening.dialect))

    # -- input -----------------------------------------------------------------------------------------

    def on_input(self, link: Link, message: ClientInput, frames: Sequence[bytes]) -> None:
        resident = self._residents.get(message.session_id)
        if resident is None:
            opening = self._opening.get(message.session_id)
            if opening is None or not opening.keep(message, frames):
                self._stranger(link, message.session_id)
            return
        attachment = resident.attachment
        if not attachment.current(message.no):
            self.late += 1
            return
        attachment.acknowledged = True
        try:
            command = decode_command(message.command)
        except msgspec.DecodeError as error:
            # The hello agreed on a version, so this is a fault of ours, not of the client.
            _log.error("session %s: a command that cannot be read: %s", message.session_id, error)
            link.drop("corrupt")
            return
        if frames:
            command = command.attach(frames)
        fact = facts.FromClient(message.no, command)
        admitted = self._admitted(resident, fact) if isinstance(command, _LIMITED) else fact
        resident.runner.post(admitted)

    def _admitted(self, resident: Resident, fact: facts.FromClient) -> facts.SessionCommand:
        """The command, or its refusal in its place."""
        machine = resident.runner.machine
        command = fact.command
        if isinstance(command, Commit):
            if machine.queued_commits < self._limits.max_pending_turns:
                return fact
            why, param, fits = "too many pending input turns", None, True
        else:
            cost, most = machine.input_cost(command), self._limits.max_pending_input_bytes
            if machine.pending_input_bytes + cost <= most:
                return fact
            param, fits = "audio", cost <= most
            why = "too many pending input bytes" if fits else "this append alone exceeds the input limit"
        return facts.InputRefused(
            command.event_id, "input_backpressure", why, RETRY_INPUT_MS, fact.no, param=param, retryable=fits
        )

    def _stranger(self, link: Link, session_id: str) -> None:
        self.late += 1
        link.send(OwnerChanged(session_id, Owner()))

    # -- attachment ------------------------------------------------------------------------------------

    def on_attach(self, link: Link, message: Attach) -> None:
        resident = self._residents.get(message.session_id)
        if resident is not None:
            resident.attach(link, message)
        else:
            self.inheritance.attach(link, message)

    def on_adopt(self, message: Adopt) -> None:
        """A gateway has no answer from the shard of this session."""
        if not self._adopt(message.session_id, message.lost) and len(self._asked) < MAX_WAITING:
            self._asked[message.session_id] = message.lost
            self.look_again()

    def roster_heard(self) -> None:
        """The registry has answered. Whoever lives is asked about again, if its gateway still misses it."""
        asked, self._asked = self._asked, {}
        for session_id, lost in asked.items():
            self._adopt(session_id, lost)

    def _adopt(self, session_id: str, lost: str) -> bool:
        """Take the session over, if it is not here and its shard is dead. False: that one is not known to be."""
        if session_id in self._residents or session_id in self._opening:
            return True
        if lost != self.inheritance.incarnation and not self.vitals.dead(lost, asyncio.get_running_loop().time()):
            return False
        self.takes_in()
        self.inheritance.take(session_id, lost)
        return True

    def inherited(self, inherited: Inherited) -> None:
        """A session of another shard is ours now, and has been restored."""
        session_id = inherited.session_id
        resident = Resident(inherited, self._around, self._over)
        self._residents[session_id] = resident
        resident.take_up(inherited)
        waiting = self.inheritance.parked(session_id)
        if waiting is not None:
            resident.attach(*waiting)
        if self._ending is not None:
            resident.runner.post(self._ending)

    def on_detach(self, link: Link, message: Detach) -> None:
        resident = self._residents.get(message.session_id)
        if resident is not None:
            resident.attachment.detach(message.generation, clean=message.clean)
        elif (opening := self._opening.get(message.session_id)) is not None:
            opening.abandoned = True

    def on_kept(self, message: Kept, bodies: Sequence[bytes]) -> None:
        resident = self._residents.get(message.session_id)
        if resident is not None:
            resident.attachment.kept(message, bodies)

    def on_delivered(self, link: Link, message: Delivered) -> None:
        resident = self._residents.get(message.session_id)
        if resident is not None:
            resident.attachment.delivered(message)

    def on_ask_numbered(self, link: Link, message: AskNumbered) -> None:
        resident = self._residents.get(message.session_id)
        if resident is not None:
            resident.attachment.tell_numbering(link)
        else:
            link.send(Numbered(message.session_id, 0))

    def on_want_covered(self, link: Link, message: WantCovered) -> None:
        resident = self._residents.get(message.session_id)
        if resident is not None:
            resident.runner.post(facts.CheckpointWanted())

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> bool:
        """One message of a gateway. False: it is none of those."""
        match message:
            case ClientInput():
                self.on_input(link, message, frames)
            case Delivered():
                self.on_delivered(link, message)
            case OpenSession():
                self.on_open(link, message, frames)
            case Attach():
                self.on_attach(link, message)
            case Adopt():
                self.on_adopt(message)
            case Detach():
                self.on_detach(link, message)
            case Kept():
                self.on_kept(message, frames)
            case AskNumbered():
                self.on_ask_numbered(link, message)
            case WantCovered():
                self.on_want_covered(link, message)
            case _:
                return False
        return True

    def on_credit(self, link: Link) -> None:
        for resident in self._residents.values():
            attachment = resident.attachment
            if attachment.link is link and attachment.wants_credit:
                attachment.on_credit()

    def gateway_lost(self, link: Link) -> None:
        for opening in self._opening.values():
            if opening.link is link:
                opening.abandoned = True
        self.inheritance.link_lost(link)
        for resident in self.residents:
            resident.gateway_lost(link)

    # -- the end ---------------------------------------------------------------------------------------

    def nothing_came(self) -> None:
        """A takeover came to nothing."""
        self._moved.set()

    def held(self) -> Collection[str]:
        """The sessions that are here, those on their way to be, from a client or from another shard, and those whose
        keys are still to be deleted: whoever inherits from us is to find all of them."""
        return {*self._residents, *self._opening, *self.inheritance, *self._around.cleanup.pending()}

    def _over(self, resident: Resident, reason: str) -> None:
        """Nothing of the session is left to do here."""
        if self._residents.get(resident.session_id) is resident:
            del self._residents[resident.session_id]
            self.admission.give_back(resident.session_id)
            self.ended[reason] = self.ended.get(reason, 0) + 1
            _log.info("session %s ended: %s", resident.session_id, reason)
            self._moved.set()

    async def empty(self) -> None:
        """Until no session is here and none is being opened."""
        while self._residents or self._opening or self.inheritance:
            self._moved.clear()
            await self._moved.wait()

    def close_all(self, reason: str, close_code: int) -> None:
        """Tell every client, then end: for the end of the process. What is being opened ends as it opens."""
        self.admission.accepting = False
        self._ending = facts.CloseRequested(reason, close_code)
        for resident in self.residents:
            resident.runner.post(self._ending)
