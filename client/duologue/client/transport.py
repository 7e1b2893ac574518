"""One connection to a server, whatever it is made of: text frames both ways, and an end.

Rule 1. A transport that has ended raises `TransportClosed` from `send` and `receive`, and never again works.
Rule 2. Nothing here knows what is in a frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class TransportClosed(Exception):
    """The connection is over. `code` is that of the close frame; 1006: there was none."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"{code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class Transport(ABC):
    """See the module. For one reader and any number of senders, in one event loop."""

    @abstractmethod
    async def send(self, frame: str) -> None:
        """Give one text frame to the server; waits while it takes none. Raises TransportClosed."""

    @abstractmethod
    async def receive(self) -> str | bytes:
        """The next text frame. Raises TransportClosed, once everything that came before the end is read."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection in good order. Does nothing if it has ended."""

    @abstractmethod
    def abort(self) -> None:
        """End it at once and without a word, as a network does."""
