"""What travels between the plugin and the stages, and from stage to stage: the heads, in msgpack.

The sound of a unit is the frame beside its head: mono float32 little-endian at 16 kHz.
"""

from __future__ import annotations

import msgspec

UNKNOWN = -1


class SlotConfig(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """For `StageEngine.open`. `turns_heard`: the number of the last user turn the session has."""

    turns_heard: int = 0


class UnitHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Plugin to perception: one unit of input."""

    start_ms: int
    auto: bool = True
    final: bool = False
    response_open: bool = False
    force_listen: bool = False
    turns_heard: int = 0


class HeardUnit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Perception to recognition: the same unit, with what the detectors say. Times are session input time."""

    start_ms: int
    end_ms: int
    speaking: bool = False
    """Somebody speaks at the end of the unit."""
    onset_ms: int = UNKNOWN
    """Where speech began, if it did so in this unit."""
    voice_end_ms: int = UNKNOWN
    """The end of the last voiced frame so far."""
    finished: float = UNKNOWN
    """The end-of-turn model's probability for the pause that lasts now."""
    auto: bool = True
    final: bool = False
    response_open: bool = False
    force_listen: bool = False
    turns_heard: int = 0


class ChatTurn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    role: str
    content: str


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """Plugin to thinker: make an answer. The last message is the user's, or the answer continues the talk."""

    messages: tuple[ChatTurn, ...]
    max_tokens: int
    temperature: float
    speed: float = 1.0
    """Of the voice, for the speech stage."""


class Clause(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Thinker to speech: a piece of the answer, spoken as printed. `last`: nothing follows it; with
    `error_code`: because the thinker broke down."""

    number: int
    text: str = ""
    last: bool = False
    speed: float = 1.0
    error_code: str = ""
    error: str = ""


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Recognition to plugin, in `ModelOutput.state`: the number of the user turn in this output."""

    turn: int
