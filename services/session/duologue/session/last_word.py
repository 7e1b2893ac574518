"""What attachments that were taken over have to say yet: how far they numbered, what of that they could not journal.

A gateway ends such an attachment with a `Detach`, when it hears that it is replaced; over the link of the attachment
that follows nothing is outstanding but what waits for credit. A gateway that is gone, or stands still, says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from duologue.bus.link import Link

WORD_S: Final = 1.0
"""How long it is waited for where something is known to be missing."""
GLANCE_S: Final = 0.05
"""And where nothing is: a gateway that cannot reach the store sends events all the same, and says so right away."""


class LastWord:
    """Of each generation in `awaited`, which was attached through that link; waited for at most `wait_s`."""

    __slots__ = ("_said", "_wait_s", "awaited")

    def __init__(self, awaited: Mapping[int, Link], wait_s: float) -> None:
        self.awaited = dict(awaited)
        self._wait_s = wait_s
        self._said = asyncio.Event()

    def said(self, generation: int) -> None:
        """By this one."""
        self.awaited.pop(generation, None)
        if not self.awaited:
            self._said.set()

    def never(self, link: Link) -> None:
        """Nothing comes over this link any more, or all that did is here."""
        for generation in [generation for generation, its in self.awaited.items() if its is link]:
            self.said(generation)

    async def heard(self) -> None:
        """Until all have said it, or for as long as it is waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                await self._said.wait()
