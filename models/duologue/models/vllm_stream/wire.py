"""What the session half of a turn model tells the engine. SANS-I/O: the session and the bus never read it."""

from __future__ import annotations

import msgspec

# Flags of a unit.
FINAL = 1
"""The last unit of a committed turn."""
CONTINUATION = 2
"""Silence that the session made: nobody needs it."""
ASK = 4
"""An answer is asked for, behind this unit."""


class Text(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of the conversation. `role`: user, assistant or system."""

    role: str
    text: str


class UnitHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Goes with everything that is submitted. `item`: a message in place of sound."""

    flags: int = 0
    item: Text | None = None


class SlotConfig(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a session wants to be answered."""

    instructions: str
    max_tokens: int
    temperature: float


UPDATE = "update"
"""The control that brings another SlotConfig."""

encode = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(UnitHead).decode
decode_config = msgspec.msgpack.Decoder(SlotConfig).decode
