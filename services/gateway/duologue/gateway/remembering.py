"""What a store that has gone back in time lacks of the sessions attached here: it is told again.

A failover to a replica that is behind may have lost who is attached and with which token, or a whole session. Its
shard goes on and its checkpoints are there again soon; the token only we know.

Rule 1. It is told whenever the store may have been another one meanwhile: the connection to it was lost, or it has not
        answered. Nobody can know, and telling what is there already changes nothing.
Rule 2. What a session was opened with (`extra`) only the store and the shard know: it is learned right after the open.
"""

from __future__ import annotations

from duologue.gateway.attachment import Attachment
from duologue.gateway.context import Gateway
from duologue.store.ports import Done, Refused


class Remembering:
    """`answered` is called at each answer of the registry, twice a second."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._reconnects = gateway.appender.reconnects

    def answered(self, after_silence: bool) -> None:
        reconnects = self._gateway.appender.reconnects
        if reconnects == self._reconnects and not after_silence:
            return
        self._reconnects = reconnects
        for attachment in self._gateway.attachments:
            if attachment.record is not None:
                self._tell(attachment)

    def _tell(self, attachment: Attachment) -> None:
        self._gateway.tally.reasserted += 1
        self._gateway.chores.add("reassert", attachment.session_id, lambda: self._reassert(attachment))

    async def _reassert(self, attachment: Attachment) -> Done | Refused | None:
        record = attachment.record
        if attachment.ended is not None or record is None:
            return None
        return await self._gateway.sessions.reassert(attachment.session_id, attachment.owner, record)


def learn(attachment: Attachment) -> None:
    """Have the record of a session that was just opened read, when there is time."""
    gateway, session_id = attachment.gateway, attachment.session_id

    async def look() -> None:
        found = await gateway.sessions.look_up(session_id)
        if found is not None and found.record.generation == attachment.generation:
            attachment.record = found.record

    gateway.chores.add("learn", session_id, look)
