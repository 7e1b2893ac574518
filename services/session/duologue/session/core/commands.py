"""What happens to a session: the closed union of the machine's inputs. SANS-I/O.

They are facts. A command can be ignored (counted as stale), never refused by an exception.
"""

from __future__ import annotations

import msgspec

from duologue.fence import CommandNo, DeliveryId, StageFence
from duologue.model.plugin import RecordedUnit
from duologue.protocol.duplex import DuplexCommand


class Fact(msgspec.Struct, frozen=True, tag=True):
    """Base of all commands; the tag is the class name, so a recorded session is one line each."""


class FromClient(Fact, frozen=True):
    """A client command, payload attached, in the order of its number. A number that was applied before is
    ignored."""

    no: CommandNo
    command: DuplexCommand


class InputRefused(Fact, frozen=True):
    """The manager turned a client command away before the mailbox: the client is told, in order. The command
    counts as applied, so that a checkpoint covers it and its gateway forgets it."""

    event_id: str | None
    code: str
    message: str
    retry_after_ms: int = 0
    no: CommandNo = CommandNo()
    param: str | None = None
    retryable: bool = True


class StagesReady(Fact, frozen=True):
    """All stages of the current binding are open."""

    fence: StageFence


class StagesLost(Fact, frozen=True):
    """A worker of the binding died, refused, or was lost; the binding is void."""

    fence: StageFence
    code: str
    message: str
    refused: bool = False
    """There is no room, or a worker does not open its stages: not a death."""


class StageOutput(Fact, frozen=True):
    """See `bus.messages.Output`."""

    fence: StageFence
    stage: int
    to_stage: int
    unit: int
    turn_id: int
    last: bool
    head: bytes
    frames: tuple[bytes, ...] = ()


class StageFailed(Fact, frozen=True):
    """One unit failed in one stage."""

    fence: StageFence
    stage: int
    unit: int
    code: str
    message: str
    retryable: bool = False


class UnitsAborted(Fact, frozen=True):
    """Per unit: consumed or dropped. Only dropped ones return to the input. Not fenced by epoch: it is the
    answer to the abort that started `fence`."""

    fence: StageFence
    consumed: tuple[int, ...]
    dropped: tuple[int, ...]


class InputRecalled(Fact, frozen=True):
    """The answer to `RecallInput`. `error`: why nothing is known (`store_away`)."""

    ticket: int
    units: tuple[RecordedUnit, ...] = ()
    error: str = ""


class Offloaded(Fact, frozen=True):
    """The result of an `Offload` effect, or why it failed."""

    ticket: int
    result: bytes
    error: str = ""


class Detected(Fact, frozen=True):
    """The answer to `Detect`: the probability of speech of each frame, and the detector's state after them.
    `error`: `detector_full` (nobody looked at it), or why there is no detector any more."""

    ticket: int
    state: bytes = b""
    probabilities: tuple[float, ...] = ()
    error: str = ""


class TurnJudged(Fact, frozen=True):
    """The answer to `JudgeTurn`: how likely the turn is finished, or why nobody knows."""

    ticket: int
    finished: float = 0.0
    error: str = ""


class Tick(Fact, frozen=True):
    """`next_deadline()` has come."""


class Attached(Fact, frozen=True):
    generation: int


class Detached(Fact, frozen=True):
    """Void unless `generation` is the attached one."""

    generation: int
    clean: bool = False


class Delivered(Fact, frozen=True):
    """Events up to `through` are on the socket, or in the journal for a detached session. Never fenced."""

    through: DeliveryId


class Covered(Fact, frozen=True):
    """Checkpoint `number` is confirmed by the store."""

    number: int


class Adopted(Fact, frozen=True):
    """A new owner continues from a checkpoint."""

    owner: int
    journaled: DeliveryId
    """Up to here the journal has its events, for good: the owner before cannot write there any more."""
    before: int = 0
    """The owner that wrote the checkpoint."""
    told: tuple[tuple[DeliveryId, bytes], ...] = ()
    """What the journal holds beyond the checkpoint, as rendered and in order."""
    lost: bool = False
    """The journal does not go back to the checkpoint: what came first is not known."""


class CheckpointWanted(Fact, frozen=True):
    """Somebody waits until everything applied is covered (an attachment being handed over, a gateway that
    keeps too much): answered by a `Checkpoint` effect unless `applied` is covered, or about to be."""


class RebindWanted(Fact, frozen=True):
    """A worker of the binding is being taken out of service: bind anew as soon as nothing is being said."""

    reason: str


class CloseRequested(Fact, frozen=True):
    """The shard ends the session (drain deadline, lost open, operator)."""

    reason: str
    close_code: int = 1000


SessionCommand = (
    FromClient
    | InputRefused
    | StagesReady
    | StagesLost
    | StageOutput
    | StageFailed
    | UnitsAborted
    | InputRecalled
    | Offloaded
    | Detected
    | TurnJudged
    | Tick
    | Attached
    | Detached
    | Delivered
    | Covered
    | Adopted
    | CheckpointWanted
    | RebindWanted
    | CloseRequested
)
