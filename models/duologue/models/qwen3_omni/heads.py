"""What the session half tells the engine: configurations, unit heads. SANS-I/O.

The session and the bus carry these bytes and never read them.
"""

from __future__ import annotations

from typing import Any

import msgspec

# Flags of a unit.
FINAL = 1
"""The last unit of a committed turn."""
CONTINUATION = 2
"""Silence that the session made: nobody needs it."""
ASK = 4
"""An answer is asked for, behind this unit."""


class UnitHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Goes with everything that is submitted. `item`: an item of the conversation in place of sound."""

    flags: int = 0
    item: dict[str, Any] | None = None


class SlotConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a session wants to be answered."""

    instructions: str
    speaks: bool
    """Sound is wanted."""
    voice: str
    max_tokens: int
    temperature: float | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | dict[str, Any] | None = None
    extra_body: dict[str, Any] = {}


HEARD = "heard"
"""The control that tells how much of the latest answer was heard, in ms."""

encode = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(UnitHead).decode
decode_config = msgspec.msgpack.Decoder(SlotConfig).decode
decode_heard = msgspec.msgpack.Decoder(int).decode
