"""Which sessions are attached to this gateway.

Rule 1. One attachment a session: putting a newer one in tells and closes the older one at once, whatever
        state its socket is in.
Rule 2. An attachment leaves only by itself: the end of an old one does not touch a newer one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from duologue.bus.link import Link

if TYPE_CHECKING:
    from duologue.gateway.attachment import Attachment


class Attachments:
    """See the module."""

    def __init__(self) -> None:
        self._by_session: dict[str, Attachment] = {}

    def __len__(self) -> int:
        return len(self._by_session)

    def __iter__(self) -> Iterator[Attachment]:
        return iter(list(self._by_session.values()))

    def of(self, session_id: str) -> Attachment | None:
        return self._by_session.get(session_id)

    def on_link(self, link: Link) -> list[Attachment]:
        return [attachment for attachment in self._by_session.values() if attachment.link is link]

    def of_principal(self, principal: str) -> int:
        """The sessions of a key, those that its client secrets opened included."""
        key = principal.partition("/")[0]
        return sum(attachment.principal.partition("/")[0] == key for attachment in self._by_session.values())

    def put(self, attachment: Attachment) -> Attachment | None:
        """The session is attached here by this one; an older one is replaced, and returned."""
        older = self._by_session.get(attachment.session_id)
        self._by_session[attachment.session_id] = attachment
        if older is None or older is attachment:
            return None
        older.replaced(here=True)
        return older

    def drop(self, attachment: Attachment) -> None:
        """This attachment is over."""
        if self._by_session.get(attachment.session_id) is attachment:
            del self._by_session[attachment.session_id]
