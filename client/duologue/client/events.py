"""What a client reads: the server's typed events, and one of its own."""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import RealtimeEvent, UnknownEvent


class ConnectionResumed(msgspec.Struct, frozen=True):
    """The connection was lost and is back; nothing was missed. Made by the client."""

    attempt: int
    type: str = "connection.resumed"


Event = RealtimeEvent | UnknownEvent | ConnectionResumed
