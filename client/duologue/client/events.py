"""What a client reads: the server's typed events, and one of its own."""

from __future__ import annotations

import msgspec

from duologue.protocol.duplex import RealtimeEvent, UnknownEvent


class ConnectionResumed(msgspec.Struct, frozen=True):
    """The connection was lost and is back. Made by the client.

    `gap`: the server no longer had all that was missed. Everything else stands: the `session.resumed` before this
    event then carries the conversation (`items`).
    """

    attempt: int
    type: str = "connection.resumed"
    gap: bool = False


Event = RealtimeEvent | UnknownEvent | ConnectionResumed
