"""What the session half of a bridge tells its engine: configurations, unit heads. SANS-I/O.

The session and the bus carry these bytes and never read them.
"""

from __future__ import annotations

from typing import Any

import msgspec

# Flags of a unit.
FINAL = 1
"""The last unit of a committed turn."""
CONTINUATION = 2
"""Silence that the session made: it goes nowhere, whoever speaks upstream makes its own."""
ASK = 4
"""An answer is asked for, behind this unit."""
COMMIT = 8
"""The client has committed what was heard before this unit (auto sessions)."""
AUTO = 16
FORCE_LISTEN = 32
KNOWN = 64
"""The session knows whether it is speech, and SPEECH tells."""
SPEECH = 128


class UnitHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Goes with everything that is submitted. `item`: an item of the conversation in place of sound."""

    flags: int = 0
    item: dict[str, Any] | None = None
    answers: bool = False
    """The item is the result of the last call that waited: somebody has to ask for the answer."""


class SlotConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A session as the upstream server is to hold it, in no dialect's words."""

    modalities: tuple[str, ...]
    auto: bool
    speaks_duplex: bool
    """The client here speaks the duplex dialect: nobody asks for an answer to a result but the model."""
    instructions: str | None = None
    voice: str | None = None
    ref_audio: str | None = None
    initial_user_text: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    speed: float | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | dict[str, Any] | None = None
    transcription: dict[str, Any] | None = None
    extra_body: dict[str, Any] = {}


HEARD = "heard"
"""The control that tells how much of the latest answer was heard."""


class Heard(msgspec.Struct, frozen=True, array_like=True, gc=False):
    ms: int


encode = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(UnitHead).decode
decode_config = msgspec.msgpack.Decoder(SlotConfig).decode
decode_heard = msgspec.msgpack.Decoder(Heard).decode
