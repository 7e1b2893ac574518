"""Which sessions are attached to this gateway, and the acknowledgements they owe.

Rule 1. One attachment a session: putting a newer one in tells and closes the older one at once, whatever
        state its socket is in.
Rule 2. An attachment leaves only by itself: the end of an old one does not touch a newer one.
Rule 3. An acknowledgement waits for the next frame of its client, which it rides along with, but not longer
        than `ACK_S`: a message of its own for each would double the wake-ups of the bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from duologue.bus.link import Link

if TYPE_CHECKING:
    from duologue.gateway.attachment import Attachment

ACK_S: Final = 0.02


class Attachments:
    """See the module."""

    def __init__(self) -> None:
        self._by_session: dict[str, Attachment] = {}
        self._owing: dict[Attachment, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._by_session)

    def __iter__(self) -> Iterator[Attachment]:
        return iter(list(self._by_session.values()))

    def of(self, session_id: str) -> Attachment | None:
        return self._by_session.get(session_id)

    def on_link(self, link: Link) -> list[Attachment]:
        return [attachment for attachment in self._by_session.values() if attachment.link is link]

    def of_principal(self, principal: str) -> int:
        return sum(attachment.principal == principal for attachment in self._by_session.values())

    def put(self, attachment: Attachment) -> Attachment | None:
        """The session is attached here by this one; an older one is replaced, and returned."""
        older = self._by_session.get(attachment.session_id)
        self._by_session[attachment.session_id] = attachment
        if older is None or older is attachment:
            return None
        older.replaced()
        return older

    def drop(self, attachment: Attachment) -> None:
        """This attachment is over."""
        self._owing.pop(attachment, None)
        if self._by_session.get(attachment.session_id) is attachment:
            del self._by_session[attachment.session_id]

    # -- acknowledgements ---------------------------------------------------------------------------------

    def owes(self, attachment: Attachment) -> None:
        """An acknowledgement is due."""
        self._owing[attachment] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_S, self._flush)

    def paid(self, attachment: Attachment) -> None:
        self._owing.pop(attachment, None)

    def _flush(self) -> None:
        self._timer = None
        owing, self._owing = self._owing, {}
        for attachment in owing:
            attachment.acknowledge()
