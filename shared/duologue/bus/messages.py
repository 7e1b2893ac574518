"""Every message between processes, as one closed union.

A message travels in a batch with others (see `link`), its payload frames beside it and never inside:
audio and rendered JSON are not encoded again on the way. `frames` below says what the payload is.
Fields are only ever added at the end with a default; a process speaks bus version v and v-1.

Rule 1. A class with `needs_credit = False` goes out even when the peer has granted no more credit:
        it frees something, or it stops something.
Rule 2. Nothing here knows a socket, a model or Redis.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from duologue.fence import CommandNo, DeliveryId, Owner, StageFence

BUS_VERSION = 1


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of all messages; the tag is the class name."""

    needs_credit: ClassVar[bool] = True


# -- gateway -> shard ---------------------------------------------------------------------------------


class OpenSession(Message, frozen=True):
    """Open a session. frames: [the session object of the first message, JSON].

    `announced`: the client has its `session.created` already (OpenAI dialects), so the core starts
    with `session.updated`. `first_command_id` is the event_id of the update that opens, if any.
    `limits` are what the gateway may lower: empty means the shard's own.
    """

    session_id: str
    dialect: str
    principal: str
    token_digest: bytes
    gateway: str
    announced: bool = False
    update_event_id: str | None = None
    update_is_first: bool = True
    """False when another command opened a default session: then `session.update` was not sent."""
    max_session_s: float = 0.0
    """The longest that this session may last, below the shard's own limit; 0: no other limit."""
    remote: str = ""
    """Where the client connects from, for the audit; empty: not said."""


class ClientInput(Message, frozen=True):
    """One command of an attached client. frames: the command's own payload (audio, camera frames).

    `command` is the msgpack of a `duologue.protocol.duplex` command without its payload.
    """

    session_id: str
    no: CommandNo
    command: bytes


class Attach(Message, frozen=True):
    """A gateway has activated `generation` for this session and claimed `egress`."""

    needs_credit = False
    session_id: str
    generation: int
    egress: int
    gateway: str
    after_gap: bool = False
    """The client came back past a hole: answer with the conversation's items."""
    journaled: int = -1
    """The last seq in the journal, by the claim; -1: not said."""
    seq: int = 0
    through: DeliveryId = DeliveryId()
    """What this gateway has numbered for the client already, where it has been the egress all along."""
    remote: str = ""
    """Where the client connects from, for the audit; empty: not said."""


class Detach(Message, frozen=True):
    """The socket of `generation` is gone. If another one is attached it is no more than its last word: all that it had
    numbered has been told."""

    needs_credit = False
    session_id: str
    generation: int
    clean: bool = False
    """The client itself closed with 1000 or no code: ends sessions of the OpenAI dialects."""


class Kept(Message, frozen=True):
    """What the socket of `generation` was sent while the store was away, and the journal may not have: the shard has
    it journaled. Before the `Detach`, or after a `Replaced`. frames: [body of each event, without its number].

    Only to shards that say `takes_kept` in the registry.
    """

    session_id: str
    generation: int
    first_seq: int
    ids: tuple[DeliveryId, ...]
    """Of the events `first_seq`, `first_seq` + 1, ..."""


class Adopt(Message, frozen=True):
    """The shard of this session, by its incarnation, does not answer us: take the session over if it is dead. Not
    answered: the store tells who owns the session."""

    needs_credit = False
    session_id: str
    lost: str


class AskNumbered(Message, frozen=True):
    """How far does this session's numbering go? Asked for a client that has more than the journal."""

    needs_credit = False
    session_id: str


class WantCovered(Message, frozen=True):
    """The un-covered commands of this session have reached their bound at the gateway: checkpoint now."""

    needs_credit = False
    session_id: str


class Delivered(Message, frozen=True):
    """Everything up to and including `through` was written to the socket (or journaled, when detached)."""

    needs_credit = False
    session_id: str
    owner: Owner
    egress: int
    through: DeliveryId
    seq: int


class StartTurn(Message, frozen=True):
    """Carry out one turn that belongs to no session (`/v1/chat/completions`). `session_id` is the turn's own id.

    frames: [the session object, JSON, then the msgpack of each command, in order]. Answered by `TurnEvents`, or
    by `SessionRefused`, which may also come after some of them.
    """

    session_id: str
    model: str


class CancelTurn(Message, frozen=True):
    """Nobody waits for this turn any more. Not answered."""

    needs_credit = False
    session_id: str


# -- shard -> gateway ---------------------------------------------------------------------------------


class SessionOpened(Message, frozen=True):
    """The session is this shard's. frames: [the session object as the client shall see it, JSON]."""

    session_id: str
    owner: Owner


class SessionRefused(Message, frozen=True):
    """The session could not be opened or attached. frames: [the `error` event, JSON, without event_id]."""

    needs_credit = False
    session_id: str
    code: str
    close_code: int


class Attached(Message, frozen=True):
    """Answer to `Attach`. frames: [session object JSON, items JSON or empty].

    Everything up to `applied` is covered by a checkpoint. Deliveries follow, from the oldest one that no
    egress has acknowledged.
    """

    session_id: str
    generation: int
    owner: Owner
    applied: CommandNo
    last_client_event_id: str | None
    input_audio_end_ms: int
    seq: int = 0
    through: DeliveryId = DeliveryId()
    """What earlier egresses reported. More than the journal has: they sent it while the store was away, and ended
    before it was back. Numbers go on above it; whoever has less of it has a gap."""
    end: Delivery | None = None
    """The session's terminal event, if that is out already: an egress before may have journaled it."""
    journaled: int = 0
    """The last seq in the journal, if that is more than the claim said: the shard has added what was kept (`Kept`)."""


class Numbered(Message, frozen=True):
    """Answer to `AskNumbered`: the last number that an egress reported; 0 if the session is not here."""

    needs_credit = False
    session_id: str
    seq: int


class Delivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the egress must know of one rendered event beside its bytes."""

    n: int
    media_of: str = ""
    """The response whose audio this is; empty for anything that `Invalidate` must not touch."""
    epoch: int = 0
    close_code: int = 0
    """Not 0: the terminal event; the socket closes with this code after it."""
    close_reason: str = ""
    of: int = 0
    """The owner number that made it, where that is an older one than the sender's; 0: the sender's own."""


class Deliveries(Message, frozen=True):
    """Rendered events in order. frames: one JSON object each, without `server_event_seq`."""

    session_id: str
    owner: Owner
    events: tuple[Delivery, ...]


class Invalidate(Message, frozen=True):
    """Remove what is not yet numbered of this response's audio, through this epoch."""

    needs_credit = False
    session_id: str
    owner: Owner
    response_id: str
    through_epoch: int


class Covered(Message, frozen=True):
    """Commands up to `through` are in a confirmed checkpoint; the gateway may forget them."""

    needs_credit = False
    session_id: str
    owner: Owner
    through: CommandNo
    made: DeliveryId = DeliveryId()
    """So is everything up to this event, which an heir need not have from the journal; of no owner: not said."""


class OwnerChanged(Message, frozen=True):
    """This shard no longer owns the session; ask the store who does."""

    needs_credit = False
    session_id: str
    owner: Owner


class Replaced(Message, frozen=True):
    """To the gateway of an older attachment: `generation` is attached now, through another gateway."""

    needs_credit = False
    session_id: str
    generation: int


class TurnEvents(Message, frozen=True):
    """What a turn says. frames: one event of the `openai` dialect each, JSON. `last`: the turn is over."""

    session_id: str
    last: bool = False


# -- shard -> stage worker ----------------------------------------------------------------------------


class OpenStages(Message, frozen=True):
    """Bind a session to this worker. frames: one plugin configuration for each stage named.

    A higher owner or binding replaces what the worker holds for the session.
    """

    session_id: str
    fence: StageFence
    pipeline: str
    stages: tuple[int, ...]


class Append(Message, frozen=True):
    """One unit for one stage. frames: [head, *payload], opaque to everything but the model's own code."""

    session_id: str
    fence: StageFence
    stage: int
    unit: int
    turn_id: int
    attempt: int = 0
    deadline_ms: int = 0
    urgent: bool = False
    """The first unit of a response goes before later units of others."""
    last: bool = True
    """False: the stage before has more to send of this unit (`Output.last`, relayed)."""
    replay: bool = False
    """It was consumed before, by stages that are lost: nothing is to be answered. Units of others go first."""


class Abort(Message, frozen=True):
    """Everything of an older epoch is void; `fence` is the new one. Answered by `Aborted`."""

    needs_credit = False
    session_id: str
    fence: StageFence


class Control(Message, frozen=True):
    """Preempting control of one stage (model update, interrupt). frames: [body]."""

    needs_credit = False
    session_id: str
    fence: StageFence
    stage: int
    kind: str


class CloseStages(Message, frozen=True):
    """Free the session's slots. Answered by `StagesClosed`; idempotent."""

    needs_credit = False
    session_id: str
    fence: StageFence


class ExportStages(Message, frozen=True):
    """Tell what the stages of this session hold, as soon as no unit of it is under way here; only to a worker that
    says in the registry that its stages export. Answered by `StagesExported` or `ExportRefused`.

    The session stays until it is closed. Whatever else comes for it takes this back, as does a `ticket` of 0.
    """

    session_id: str
    fence: StageFence
    ticket: int
    """Of this attempt; the answer repeats it."""


class ImportStages(Message, frozen=True):
    """`OpenStages` with what another worker's stages held. frames: one state for each stage named, as exported.

    Answered as an open is, and only to a worker that says that its stages export.
    """

    session_id: str
    fence: StageFence
    pipeline: str
    stages: tuple[int, ...]


# -- stage worker -> shard ----------------------------------------------------------------------------


class StagesOpened(Message, frozen=True):
    session_id: str
    fence: StageFence
    stages: tuple[int, ...]


class StagesRefused(Message, frozen=True):
    needs_credit = False
    session_id: str
    fence: StageFence
    code: str
    message: str


class Output(Message, frozen=True):
    """What a stage made. frames: [head, *payload].

    `to_stage` >= 0: opaque data for that stage of the pipeline, relayed by the shard to the worker that
    holds it. `to_stage` = -1: a result for the session, read by the model's plugin. `last`: the unit is
    consumed and this stage has no more to say of it. `unit` = -1: made between appends.
    """

    session_id: str
    fence: StageFence
    stage: int
    to_stage: int
    unit: int
    turn_id: int
    last: bool = True


class UnitFailed(Message, frozen=True):
    needs_credit = False
    session_id: str
    fence: StageFence
    stage: int
    unit: int
    code: str
    message: str
    retryable: bool = False


class Aborted(Message, frozen=True):
    """Answer to `Abort`: which units the worker had consumed and which it dropped unread."""

    needs_credit = False
    session_id: str
    fence: StageFence
    consumed: tuple[int, ...]
    dropped: tuple[int, ...]


class StagesClosed(Message, frozen=True):
    needs_credit = False
    session_id: str
    fence: StageFence


class StagesExported(Message, frozen=True):
    """Answer to `ExportStages`: all that the stages made of earlier units is ahead of it, and nothing follows before
    the session is given something again. frames: one state for each stage named."""

    session_id: str
    fence: StageFence
    ticket: int
    stages: tuple[int, ...]


class ExportRefused(Message, frozen=True):
    """The state stays here. `not_now`: it may be asked for again."""

    needs_credit = False
    session_id: str
    fence: StageFence
    ticket: int
    code: str
    message: str


AnyMessage = (
    OpenSession
    | ClientInput
    | Attach
    | Kept
    | Adopt
    | Detach
    | AskNumbered
    | WantCovered
    | Delivered
    | StartTurn
    | CancelTurn
    | SessionOpened
    | SessionRefused
    | Attached
    | Numbered
    | Deliveries
    | Invalidate
    | Covered
    | OwnerChanged
    | Replaced
    | TurnEvents
    | OpenStages
    | Append
    | Abort
    | Control
    | CloseStages
    | ExportStages
    | ImportStages
    | StagesOpened
    | StagesRefused
    | Output
    | UnitFailed
    | Aborted
    | StagesClosed
    | StagesExported
    | ExportRefused
)
