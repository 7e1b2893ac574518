"""Resuming a session on this socket: the token, the cursor, the journal, the shard, in this order.

Rule 1. Everything that can be refused is refused before the token is spent: a refused resume leaves it good.
Rule 2. From the activation on this socket is the only owner, whatever happens to it: a takeover here ends the
        older socket at once; at another gateway the shard tells it.
Rule 3. A resume that does not come to its end lets go of the attachment, cancelled at any await: the session
        is detached then, and the token before last is good again.
Rule 4. What may succeed later is said to be retryable and closes with 1013.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import Adopt, Attach, Attached, Detach, SessionRefused
from duologue.fence import Owner
from duologue.gateway.announce import Resumed, resumed, resync_required, shard_error
from duologue.gateway.attachment import Answer, Attachment
from duologue.gateway.audit import model_of
from duologue.gateway.connection import Connection, Resume
from duologue.gateway.context import Gateway
from duologue.gateway.opening import POLICY, RETRY_AFTER_MS, TRY_AGAIN, Refused
from duologue.gateway.provisional import new_token, token_digest
from duologue.gateway.wire import Wire
from duologue.store.ports import Activated, Head, Replay, ResumeRefused, StoreUnavailable

_log = logging.getLogger("duologue.gateway")

REACH_S: Final = 2.0
ATTACH_S: Final = 5.0
ADOPT_S: Final = 4.0
"""How long a resume waits until an heir has the session: its owner may not be known to be dead yet."""
ASK_S: Final = 0.1
ASKED_EACH: Final = 20
"""So often an heir is asked before the next one is."""

_MESSAGES: Final = {
    "session_resume_expired": "the session is unknown or has ended",
    "invalid_resume_token": "the token is not the current one of this session",
    "invalid_session_resume": "the session cannot be resumed like this",
}


class Replayable(msgspec.Struct, frozen=True):
    """The session is attached and its client told; entries in (cursor, head] are still to be written."""

    attachment: Attachment
    cursor: int
    head_seq: int
    moved: bool = False
    """Not a resume: the session has another shard (see `rehoming`)."""
    took_over: bool = False
    """From a socket that had not let go of it, here or at a gateway that lives."""


class Resuming:
    """One resume for one socket."""

    def __init__(self, gateway: Gateway, wire: Wire, connection: Connection, principal: str, step: Resume) -> None:
        self._gateway = gateway
        self._wire = wire
        self._connection = connection
        self._principal = principal
        self._step = step
        self._token = new_token()
        self._live: frozenset[str] = frozenset()
        self._held_elsewhere = False

    async def run(self) -> Replayable | Refused:
        """The attachment; or the refusal, not told yet."""
        try:
            return await self._examined() or await self._activated()
        except StoreUnavailable as error:
            _log.warning("resume of session %s: %s", self._step.session_id, error)
            return self._later("the store does not answer")

    # -- before the token is spent ------------------------------------------------------------------------

    async def _examined(self) -> Refused | None:
        gateway, step, dialect = self._gateway, self._step, self._connection.offer.dialect
        here = gateway.attachments.of(step.session_id)
        # At once, for a store may be far away. Who lives is asked for the activation, which compares the token again.
        self._live, found, replay = await asyncio.gather(
            gateway.live_gateways(),
            gateway.sessions.examine(
                step.session_id,
                token_digest=token_digest(step.token),
                principal=self._principal,
                dialect=dialect.value,
                live_gateways=gateway.known_gateways(),
            ),
            gateway.journal.read(step.session_id, step.cursor, limit=1),
        )
        if isinstance(found, ResumeRefused):
            return self._refused(found)
        holder = found.record.gateway
        self._held_elsewhere = holder in self._live and holder != gateway.incarnation
        if here is not None:
            await here.trim_now()
            replay = await gateway.journal.read(step.session_id, step.cursor, limit=1)
        if replay.gap:
            return self._gap(replay.head_seq, "the journal begins behind it")
        link = await reach_owner(gateway, step.session_id, found.owner)
        if link is None:
            return self._later("the session's shard cannot be reached")
        if step.cursor > replay.head_seq:  # sent while the store was away, perhaps, and never journaled
            seq = await gateway.links.numbered(link, step.session_id, REACH_S)
            if seq is None:
                return self._later("the session's shard did not answer")
            if seq == 0:
                return await self._ended_or_moved(found.owner)
            if step.cursor > seq:
                return self._beyond()
        return None

    async def _ended_or_moved(self, owner: Owner) -> Refused:
        """Its shard has numbered nothing, or has the session no more: then what it left in the store is on its way out,
        or a change of owner on its way in. Raises `StoreUnavailable`."""
        until = self._gateway.now() + REACH_S
        while self._gateway.now() < until:
            found = await self._gateway.sessions.look_up(self._step.session_id)
            if found is None:
                return self._refused(ResumeRefused("session_resume_expired"))
            if found.owner != owner:
                return self._later("the session is moving to another shard")
            await asyncio.sleep(ASK_S)
        return self._beyond()

    def _beyond(self) -> Refused:
        return self._refuse("session_resume_conflict", "the cursor is beyond what was sent", POLICY)

    def _gap(self, head_seq: int, why: str) -> Refused:
        step = self._step
        _log.warning("session %s has a gap: resumed from %d of %d, %s", step.session_id, step.cursor, head_seq, why)
        self._gateway.remember_gap(self._step.session_id)
        notice = resync_required(self._step.session_id, head_seq, openai=self._connection.openai)
        return Refused("session_resync_required", notice, POLICY, True)

    # -- from the activation on ---------------------------------------------------------------------------

    async def _activated(self) -> Replayable | Refused:
        gateway, step, dialect = self._gateway, self._step, self._connection.offer.dialect
        settled = False
        try:
            active = await gateway.sessions.activate(
                step.session_id,
                token_digest=token_digest(step.token),
                new_digest=token_digest(self._token),
                principal=self._principal,
                dialect=dialect.value,
                gateway=gateway.incarnation,
                live_gateways=self._live,
            )
            settled = True
        finally:
            if not settled:  # cancelled, or no answer: it may have been carried out, or be yet
                self._settle_later()
        if isinstance(active, ResumeRefused):
            return self._refused(active)
        link = gateway.links.of(active.owner.incarnation)
        if link is None:
            self._settle_later()
            return self._later("the session's shard cannot be reached")
        attachment = Attachment(
            gateway, self._wire, step.session_id, dialect, self._principal, active.record.generation, link
        )
        attachment.model = model_of(active.record.extra)
        attachment.remote = self._connection.remote
        attachment.record = active.record
        older = gateway.attachments.put(attachment)
        done = False
        try:
            outcome = await self._attached(attachment, active)
            if not isinstance(outcome, Replayable):
                return outcome
            done = True
            return msgspec.structs.replace(outcome, took_over=older is not None or self._held_elsewhere)
        finally:
            if not done:
                attachment.leave()
                if older is not None:  # the shard may know of that one only
                    gateway.links.departures.detach(older.link, Detach(older.session_id, older.generation))

    async def _attached(self, attachment: Attachment, active: Activated) -> Replayable | Refused:
        gateway, step = self._gateway, self._step
        generation = attachment.generation
        head = await gateway.journal.claim(
            step.session_id,
            owner=active.owner,
            generation=generation,
            claimant=f"{gateway.incarnation}/{generation}",
        )
        if not isinstance(head, Head):
            if head.reason in ("generation", "egress"):
                return self._refuse("session_resume_conflict", "another resume has won", POLICY)
            return self._later(f"the journal refused: {head.reason}")
        attachment.begin(active.owner, head)
        after_gap = gateway.forget_gap(step.session_id) or head.first_seq > 1
        message = Attach(step.session_id, generation, head.egress, gateway.incarnation, after_gap, head.last_seq)
        answer = await attachment.attach(message, ATTACH_S)
        if attachment.ended is not None:
            return self._later("the session was taken over or lost meanwhile")
        if answer is None:
            return self._later("the session's shard did not answer")
        if isinstance(answer.message, SessionRefused):
            _, error = shard_error(answer.frames[0], openai=self._connection.openai)
            return Refused(answer.message.code, error, answer.message.close_code or POLICY, True)
        told = answer.message
        assert isinstance(told, Attached)
        journaled = max(head.last_seq, told.journaled)
        head_seq = max(journaled, told.seq)
        if step.cursor > head_seq or journaled < head_seq > step.cursor:
            # The token is spent: it is good again before the client is told.
            await gateway.sessions.let_go(step.session_id, generation)
            if step.cursor > head_seq:
                return self._beyond()
            why = f"the journal ends at {journaled}, what left without it was lost with the gateway that sent it"
            return self._gap(head_seq, why)
        self._announce(attachment, answer, told, head_seq)
        return Replayable(attachment, step.cursor, head_seq)

    def _announce(self, attachment: Attachment, answer: Answer, told: Attached, head_seq: int) -> None:
        if told.owner > attachment.owner:
            attachment.owner = told.owner
        found = Resumed(
            session_id=attachment.session_id,
            session=answer.frames[0],
            generation=attachment.generation,
            token=self._token,
            head_seq=head_seq,
            last_client_event_id=told.last_client_event_id,
            input_audio_end_ms=told.input_audio_end_ms,
            items=answer.frames[1] if len(answer.frames) > 1 else b"",
        )
        self._wire.write(resumed(found, openai=self._connection.openai))

    def _settle_later(self) -> None:
        """Have the store let go of an activation that nobody waits for, or refuse it however late it comes."""
        gateway, session_id, digest = self._gateway, self._step.session_id, token_digest(self._token)
        chore = f"settle {digest.hex()[:8]}"  # of its own: one must not replace another
        gateway.chores.add(chore, session_id, lambda: gateway.sessions.let_go(session_id, new_digest=digest))

    # -- refusals -----------------------------------------------------------------------------------------

    def _refused(self, refused: ResumeRefused) -> Refused:
        message = _MESSAGES.get(refused.code, "the session cannot be resumed")
        return self._refuse(refused.code, message, POLICY, param=refused.param or None)

    def _refuse(self, code: str, message: str, close_code: int, *, param: str | None = None) -> Refused:
        error = self._connection.error(code, message, param=param, event_id=self._step.event_id)
        return Refused(code, error, close_code, True)

    def _later(self, message: str) -> Refused:
        error = self._connection.error(
            "runtime_resume_failed", message, event_id=self._step.event_id, retry_after_ms=RETRY_AFTER_MS
        )
        return Refused("runtime_resume_failed", error, TRY_AGAIN, True)


async def reach_owner(gateway: Gateway, session_id: str, owner: Owner) -> Link | None:
    """The link to the shard that owns the session; an heir is asked to take it from one that is not there any more.
    None: not soon enough. Raises StoreUnavailable."""
    links = gateway.links
    if links.of(owner.incarnation) is None and gateway.router.owner(owner.incarnation) is not None:
        return await links.reach(owner.incarnation, REACH_S)
    until = gateway.now() + ADOPT_S
    while (link := links.of(owner.incarnation)) is None and gateway.now() < until:
        ask_heir(gateway, session_id, owner.incarnation)
        await asyncio.sleep(ASK_S)
        found = await gateway.sessions.look_up(session_id)
        if found is None:
            return None
        owner = found.owner
    return link


def ask_heir(gateway: Gateway, session_id: str, lost: str, asked: int = 0) -> None:
    """Have the session taken over, if its shard is dead; after some time in vain, by the next in order."""
    heirs = gateway.router.heirs(session_id, lost)
    if heirs:
        link = gateway.links.of(heirs[asked // ASKED_EACH % len(heirs)].incarnation)
        if link is not None:
            link.send(Adopt(session_id, lost))


class ReplayGap(Exception):
    """Entries that were promised are gone. `head_seq` is what the client may resume from."""

    def __init__(self, head_seq: int) -> None:
        super().__init__(f"the journal has a gap; its head is {head_seq}")
        self.head_seq = head_seq


def entries_of(replay: Replay) -> Replay:
    """The page itself. Raises `ReplayGap` where it does not begin with the entry that is due."""
    if replay.gap or not replay.entries:
        raise ReplayGap(replay.head_seq)
    return replay
