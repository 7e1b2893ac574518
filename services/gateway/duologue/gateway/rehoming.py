"""A session whose shard is lost, at the gateway: its socket stays, and it moves to the shard that has it now.

Rule 1. The store alone says who owns it. While nobody does who can be reached, the heir is asked to take it over; it
        does when the owner is dead.
Rule 2. The journal is claimed anew before the attachment: what was under way is in it, and replayed to the client from
        there, or it is told again by the owner. No number is given twice.
Rule 3. Commands that the owner has not applied are sent again, in order, before any new one.
Rule 4. It ends with an answer: after `PATIENCE_S` of a store that answers the client is told `shard_lost`.
Rule 5. A session that is over needs no shard where its last event is here already: the client reads it, however slowly,
        and its socket is closed as that says.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from duologue.bus.link import Link
from duologue.bus.messages import Adopt, Attach, Attached
from duologue.fence import Owner
from duologue.gateway.attachment import Attachment
from duologue.gateway.resuming import ATTACH_S, Replayable, ask_heir
from duologue.store.ports import Head, StoreUnavailable

_log = logging.getLogger("duologue.gateway")

PATIENCE_S: Final = 15.0
AWAY_S: Final = 60.0
"""The same while the store does not answer."""
EVERY_S: Final = 0.1


class Rehoming:
    """One loss of one attachment's shard."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._gateway = attachment.gateway
        self._began = self._gateway.now()
        self._asked = 0
        self._claims = 0
        self._over = False
        """The session is, and all that is left to tell of it is here."""

    async def run(self) -> Replayable | None:
        """What is to be replayed before the session goes on; None: the attachment has ended, or will."""
        attachment, gateway = self._attachment, self._gateway
        until, away_until = self._began + PATIENCE_S, self._began + AWAY_S
        why = "no shard has taken the session over"
        while attachment.ended is None and not self._over and gateway.now() < min(until, away_until):
            try:
                home = await self._look()
            except StoreUnavailable as error:
                until, why = gateway.now() + PATIENCE_S, f"the store does not answer: {error}"
                home = None
            if home is not None:
                gateway.tally.moved("ok", gateway.now() - self._began)
                return home
            await asyncio.sleep(EVERY_S)
        ended = self._over or attachment.ended is not None
        gateway.tally.moved("ended" if ended else "given_up")
        if not ended:
            attachment.give_up(why)
        return None

    async def _look(self) -> Replayable | None:
        """One attempt. None: not yet, or all is over. Raises StoreUnavailable."""
        attachment, gateway = self._attachment, self._gateway
        found = await gateway.sessions.look_up(attachment.session_id)
        if found is None:
            self._over = attachment.outbound.has_end
            if not self._over:
                attachment.give_up("the session has ended")
            return None
        if found.record.generation > attachment.generation:
            attachment.replaced()
            return None
        link = gateway.links.of(found.owner.incarnation)
        if link is not None:
            return await self._attach(link, found.owner)
        ask_heir(gateway, attachment.session_id, found.owner.incarnation, self._asked)
        self._asked += 1
        return None

    async def _attach(self, link: Link, owner: Owner) -> Replayable | None:
        attachment, gateway = self._attachment, self._gateway
        generation, session_id = attachment.generation, attachment.session_id
        numbered = attachment.outbound.numbered
        claimant = f"{gateway.incarnation}/{generation}/{owner.number}/{numbered[0]}/{self._claims}"
        head = await gateway.journal.claim(session_id, owner=owner, generation=generation, claimant=claimant)
        if not isinstance(head, Head) or attachment.ended is not None:
            return None
        self._claims += 1
        attachment.move(link, owner, head)
        message = Attach(
            session_id, generation, head.egress, gateway.incarnation, False, head.last_seq, numbered[0], numbered[1]
        )
        answer = await attachment.attach(message, ATTACH_S)
        if answer is None or not isinstance(answer.message, Attached):
            link.send(Adopt(session_id, owner.incarnation))  # it may be its owner without knowing
            return None
        sent = attachment.outbound.sent
        if answer.message.seq > max(head.last_seq, numbered[0]):
            attachment.give_up("what was sent to this client is not in the journal")
            return None
        if not await attachment.settle(answer.message.applied):
            return None
        _log.info("session %s has moved to %s", session_id, link.peer.name)
        return Replayable(attachment, sent, head.last_seq, True)
