"""What a session wants done: the closed union of the machine's outputs, performed in order. SANS-I/O."""

from __future__ import annotations

import msgspec

from duologue.fence import CommandNo, StageFence
from duologue.model.plugin import RecordedUnit


class Order(msgspec.Struct, frozen=True, tag=True):
    """Base of all effects."""


class Deliver(Order, frozen=True):
    """Hand one rendered event (JSON without a sequence number) to the egress. `n` only grows, from owner to owner."""

    n: int
    body: bytes
    media_of: str = ""
    epoch: int = 0
    close_code: int = 0
    close_reason: str = ""
    of: int = 0
    """The owner that made it, where that is one before us; 0: ourselves."""


class Submit(Order, frozen=True):
    """Give one unit to the worker of this stage."""

    fence: StageFence
    stage: int
    unit: int
    turn_id: int
    head: bytes
    frames: tuple[bytes, ...]
    attempt: int = 0
    urgent: bool = False
    replay: bool = False
    """It was heard before: see `rebuild`."""


class Abort(Order, frozen=True):
    """Everything before `fence` is void in every worker of the session."""

    fence: StageFence


class OpenStages(Order, frozen=True):
    """Bind and open every stage; `configs` has one entry for each."""

    fence: StageFence
    configs: tuple[bytes, ...]


class ControlStage(Order, frozen=True):
    fence: StageFence
    stage: int
    kind: str
    body: bytes


class CloseStages(Order, frozen=True):
    """Free the slots of this binding and of all before it."""

    fence: StageFence


class Offload(Order, frozen=True):
    """Do this work in the executor: it would hold up the loop. Answered by `Offloaded`."""

    ticket: int
    kind: str
    body: bytes


class Detect(Order, frozen=True):
    """Have the speech detector look at this sound: whole frames of 512 float32 samples at 16 kHz. `state` is
    what it returned last, empty at first. Answered by `Detected`."""

    ticket: int
    state: bytes
    sound: bytes


class JudgeTurn(Order, frozen=True):
    """Ask the end-of-turn model about the last seconds of a turn, float32 at 16 kHz. Answered by `TurnJudged`."""

    ticket: int
    sound: bytes


class Checkpoint(Order, frozen=True):
    """Make this state durable; answered by `Covered(number)` and, at the gateway, by `bus.Covered`."""

    number: int
    body: bytes
    applied: CommandNo
    made: int = 0
    """The last event whose cause it contains."""


class RecordInput(Order, frozen=True):
    """The stages have heard this: keep it, within the pipeline's window, for whoever rebuilds their context."""

    unit: RecordedUnit


class RecallInput(Order, frozen=True):
    """Tell what was kept of the units before `below`, oldest first. Answered by `InputRecalled`, always."""

    ticket: int
    below: int


class Invalidate(Order, frozen=True):
    """Purge what is not numbered yet of this response's audio."""

    response_id: str
    through_epoch: int


class TellFault(Order, frozen=True):
    """Log a fault of our own that was recovered from: where it happened, without anything of the session's."""

    where: str


class Close(Order, frozen=True):
    """The session is over: free everything once its last event is acknowledged."""

    reason: str


SessionEffect = (
    Deliver
    | Submit
    | Abort
    | OpenStages
    | ControlStage
    | CloseStages
    | Offload
    | Detect
    | JudgeTurn
    | Checkpoint
    | RecordInput
    | RecallInput
    | Invalidate
    | TellFault
    | Close
)
