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


class Called(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A function call that the assistant made, as the conversation holds it. `arguments`: JSON text."""

    call_id: str
    name: str
    arguments: str


class ChatTurn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Roles: system, user, assistant, tool. An assistant's `calls` are followed by one tool turn for each."""

    role: str
    content: str
    calls: tuple[Called, ...] = ()
    call_id: str = ""
    """Of a tool turn: the call that `content` is the result of."""
    images: tuple[str, ...] = ()
    """Of a user's turn: data URLs."""


class Tool(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A function that may be called. `schema`: the JSON object of its parameters, or empty."""

    name: str
    description: str = ""
    schema: bytes = b""


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """Plugin to thinker: make an answer. The last message is the user's, or the answer continues the talk."""

    messages: tuple[ChatTurn, ...]
    max_tokens: int
    """Of the words."""
    temperature: float
    speed: float = 1.0
    """Of the voice, for the speech stage."""
    tools: tuple[Tool, ...] = ()
    choice: str = ""
    """auto, none, required, or `=NAME` for one function; empty: the server's default."""
    call_tokens: int = 0
    """How many more tokens a function call may take."""


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
