"""The Link port: one peer, as the rest of the system sees it.

Promises. (1) FIFO while connected; no duplicates. (2) A message is lost only together with `on_lost`:
every gap of the sequence number is `PeerLost`, never a silent hole. (3) Nothing is sent before both
sides have said hello; messages of a dead incarnation are refused. (4) Credit is the flow control:
`send` answers False, and keeps nothing, when the peer has granted no more. (5) What is sent in one turn
of the event loop travels as one multipart message.

There is no retransmission here: commands, deliveries and units have ids and acknowledgements of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from duologue.bus.messages import AnyMessage

Frame = bytes | bytearray | memoryview


class Peer(msgspec.Struct, frozen=True, gc=False):
    """Who is at the other end: its configured name, its kind, and this life of it."""

    name: str
    kind: str
    incarnation: str


class PeerLost(msgspec.Struct, frozen=True):
    """Why a link ended. After it, the same peer may come back as a new `Link`."""

    peer: Peer
    reason: str
    """gap | silent | replaced | version | closed | send_failed | corrupt"""


class Link(ABC):
    """One live peer. Used from the event loop's thread only."""

    peer: Peer

    @abstractmethod
    def send(self, message: AnyMessage, frames: Sequence[Frame] = ()) -> bool:
        """Queue for this turn of the loop. False: no credit, nothing was taken (see `on_credit`).

        A message larger than the whole window is taken when nothing is outstanding. Messages whose class
        says `needs_credit = False` are always taken. After the link is lost everything answers False.
        """

    def send_lazily(self, message: AnyMessage, frames: Sequence[Frame] = ()) -> bool:
        """As `send`, for what may wait a few milliseconds for company: it goes with whatever goes next to
        this peer, in order, at the latest when the endpoint's `gather_s` is over."""
        return self.send(message, frames)

    @abstractmethod
    def flush(self) -> None:
        """Send what is queued now instead of at the end of this turn of the loop."""

    @abstractmethod
    def drop(self, reason: str) -> None:
        """Give the peer up: `on_lost` is called once, later messages of this incarnation are refused."""


class LinkHandler(ABC):
    """What a process does with its links. Called from the event loop; must not block or await."""

    @abstractmethod
    def on_ready(self, link: Link) -> None:
        """Both sides have said hello: the link may be used."""

    @abstractmethod
    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        """One message. Its credit is returned to the sender when this returns."""

    @abstractmethod
    def on_credit(self, link: Link) -> None:
        """Credit is there again after a `send` that answered False."""

    @abstractmethod
    def on_lost(self, link: Link, lost: PeerLost) -> None:
        """The link is gone. Called once per link that was ready."""


class Endpoint(ABC):
    """One process's place on the bus: it listens for peers and dials others."""

    @abstractmethod
    async def start(self) -> None:
        """Bind and begin to serve. Raises `BusError` (address in use, no such interface)."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where others dial (ipc:// or tcp://)."""

    @abstractmethod
    def dial(self, name: str, address: str) -> None:
        """Connect to a peer, and again after each loss, until `hang_up`. `on_ready` tells when it answers."""

    @abstractmethod
    def hang_up(self, name: str) -> None:
        """Stop dialling and drop the link, if any."""

    @abstractmethod
    async def close(self) -> None:
        """Flush what is queued within the linger time and close every socket."""
