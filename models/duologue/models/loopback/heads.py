"""What the parts of the loopback model tell each other: configurations, unit heads, decisions. SANS-I/O.

The session and the bus carry these bytes and never read them.

Rule 1. All truth about where a script stands is the `Position` of the last result that the session took
        (its state). A stage runs ahead of it, and is set back to it when the epoch moves.
Rule 2. Stages after the first keep nothing of a session: a decision holds all that they need.
"""

from __future__ import annotations

import msgspec

from duologue.model.outputs import TextMark, ToolCall
from duologue.models.loopback.script import Audio, Fail, Step

# What becomes of a unit. NOTHING: taken in, and nothing moved yet. UNDECIDED: its turn was over already.
LISTEN, SPEAK, CALL, UNDECIDED, NOTHING = range(5)

# Flags of a unit.
AUTO = 1
DECIDE = 2
"""The unit may move the script: of an auto session, or of a turn that is to be answered."""
FINAL = 4
CONTINUATION = 8
FORCE_LISTEN = 16
KNOWN = 32
"""The session knows whether it is speech, and SPEECH tells."""
SPEECH = 64
CALL_FIRST = 128
"""loopback-talk: this turn calls the first tool instead of answering."""
RESULT = 256
"""loopback-talk: this turn answers after the result of a call."""


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a script stands."""

    step: int = 0
    done: int = 0
    """Units of this step that are decided."""
    run: int = 0
    """Silent units in a row, of a step that waits for them. Talk: ms of speech that is not answered yet."""
    spoken: int = 0
    """Audio units of the session so far: the phase of its tone."""
    heard_ms: int = 0
    """loopback-talk: speech of the turn that is being answered."""
    turn: int = 0
    """The answered turn, as the session half counts them."""
    ended: bool = False
    """That turn is over."""


class UnitHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Goes with each unit into the first stage."""

    flags: int
    turn: int
    at: Position


class StageConfig(msgspec.Struct, frozen=True, array_like=True):
    """What `StageEngine.open` is told. `script` is empty where a stage does not need it."""

    audio: Audio
    compute_ms: float
    jitter_ms: float
    seed: int
    fail: Fail | None
    context_units: int
    script: tuple[Step, ...] = ()
    at: Position = Position()
    epoch: int = 0
    speed: float = 1.0
    """How fast it speaks: a unit of input is answered with so much less sound."""
    frames: bool = False
    """Tell the camera frames that came."""
    heard: int = 0
    """How many units of the user's sound are remembered and told."""


HELD_VERSION = 1
"""Of `Held`: an engine takes no state of another one."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """All that a stage holds of a session between two units, for the same stage of another worker."""

    version: int
    stage: int
    config: StageConfig
    """As it was opened, with where its script, its epoch and its speed are by now."""
    before: bytes = b""
    """The rest is the first stage's: the end of the sound before the last unit."""
    history: bytes = b""
    seen: tuple[str, ...] = ()
    context: int = 0
    memory: tuple[int, ...] = ()


class Decision(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Goes from stage to stage; `text`, `marks` and `calls` are the second stage's."""

    kind: int
    step: int
    index: int
    """Which unit of its step this is, from 0."""
    spoken: int
    """Audio units of the session before this one."""
    end_of_turn: bool
    heard_ms: int
    state: bytes
    text: str = ""
    marks: tuple[TextMark, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    seen: str = ""
    """What is to be told of camera frames, by the first stage."""


encode = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(UnitHead).decode
decode_config = msgspec.msgpack.Decoder(StageConfig).decode
decode_held = msgspec.msgpack.Decoder(Held).decode
decode_decision = msgspec.msgpack.Decoder(Decision).decode
decode_position = msgspec.msgpack.Decoder(Position).decode
