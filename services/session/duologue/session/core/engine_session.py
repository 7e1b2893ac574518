"""DuplexEngineSession: everything a session is, one tree of structs that is encoded as one value. SANS-I/O.

Rule 1. Lists and dicts only: a set would make the same commands give other effects under another hash seed.
Rule 2. What carries sound stands in `sound` alone: a checkpoint leaves it out, a snapshot does not.
Rule 3. Numbers that were told to anybody (`epoch`, `next_unit`, `outbox.n`, `ids`) only grow.
"""

from __future__ import annotations

from typing import Final

import msgspec

from duologue.fence import CommandNo, StageFence
from duologue.model.outputs import ModelOutput, Usage
from duologue.model.plugin import AppendPlan
from duologue.protocol.duplex import (
    AudioFormat,
    Dialect,
    DuplexCommand,
    Item,
    SessionConfig,
)
from duologue.session.core.commands import InputRefused
from duologue.session.core.detection import Detection
from duologue.session.core.echoes import Echoes
from duologue.session.core.ledger import PlaybackLedger
from duologue.session.core.limits import SessionLimits
from duologue.session.core.outbox import DuplexOutputBuffer


class Segment(msgspec.Struct, array_like=True, gc=False):
    """A stretch of one buffer whose samples share what is known of them. `size` counts bytes."""

    size: int
    start_ms: float
    is_speech: bool = False
    force_listen: bool = False
    final: bool = False
    """The last bytes of a committed turn; no unit reaches beyond it."""
    video_frames: tuple[bytes, ...] = ()


class SoundBuffer(msgspec.Struct):
    """PCM at the model's input rate (mono float32) and the segments that it consists of, in order."""

    pcm: bytearray = msgspec.field(default_factory=bytearray)
    segments: list[Segment] = []

    def __len__(self) -> int:
        return len(self.pcm)

    def push(self, pcm: bytes, segment: Segment) -> None:
        """Append one stretch; it joins the last one if nothing tells them apart."""
        last = self.segments[-1] if self.segments else None
        if (
            last is not None
            and last.is_speech is segment.is_speech
            and last.force_listen is segment.force_listen
            and not (last.final or segment.final or segment.video_frames)
        ):
            last.size += segment.size
        else:
            self.segments.append(segment)
        self.pcm += pcm

    def take_all(self) -> SoundBuffer:
        """Everything; this buffer is empty afterwards."""
        taken = SoundBuffer(self.pcm, self.segments)
        self.pcm, self.segments = bytearray(), []
        return taken

    def join(self, other: SoundBuffer) -> None:
        self.pcm += other.pcm
        self.segments += other.segments

    def clear(self) -> None:
        self.pcm, self.segments = bytearray(), []


class Flight(msgspec.Struct, gc=False):
    """One submitted unit: what went out, so that it can be tried again or taken back."""

    turn_id: int
    head: bytes
    frames: tuple[bytes, ...]
    stage: int
    pcm: bytes = b""
    start_ms: float = 0.0
    is_speech: bool = False
    force_listen: bool = False
    final: bool = False
    video_frames: tuple[bytes, ...] = ()
    continuation: bool = False
    is_input: bool = True
    """False for what is submitted from the conversation; it takes no place in the window."""
    attempt: int = 0
    deaths: int = 0
    places: int = 1
    """In how many stages it is being worked on."""
    relayed: bool = False
    """A stage has handed it on, so it was consumed."""
    urgent: bool = False
    """It begins a response."""


class Paced(msgspec.Struct, array_like=True, gc=False):
    """What the model said earlier than it is to be told (see `pacing`)."""

    output: ModelOutput
    pcm: bytes


class Sound(msgspec.Struct):
    """All audio that waits for something, and pictures: what no checkpoint has."""

    feed: SoundBuffer = msgspec.field(default_factory=SoundBuffer)
    """To be cut into units and submitted."""
    buffer: SoundBuffer = msgspec.field(default_factory=SoundBuffer)
    """Not committed yet (turn-based)."""
    retained: SoundBuffer = msgspec.field(default_factory=SoundBuffer)
    """Committed, waiting to be answered (turn-based)."""
    preroll: SoundBuffer = msgspec.field(default_factory=SoundBuffer)
    """What the speech detector did not take for speech; a turn that begins late has its beginning here."""
    flights: dict[int, Flight] = {}
    flight_bytes: int = 0
    in_window: int = 0
    """How many flights are units of input."""
    carry: bytes = b""
    """What the input converter needs to go on where it stands (see `Ears`)."""
    voice_carry: bytes = b""
    pictures: dict[str, tuple[str, ...]] = {}
    """The images of items of the conversation, by item (see `pictures`)."""
    sees: bool = False
    """Camera frames have come: they count as input that is held."""
    paced: list[Paced] = []
    voided: dict[int, Flight] = {}
    """Units that an abort took out of the books before their workers told whether they were heard (see `rebuild`)."""
    replays: list[AppendPlan] = []
    """What is still to be replayed to stages that were opened anew (see `rebuild`)."""
    replaying: dict[int, int] = {}
    """Replays in the pipeline, and in how many stages each is being worked on."""
    paced_bytes: int = 0
    marks: list[tuple[float, float]] = []
    """While units wait in `feed`: sound up to this moment of the input had come by this time (see `input_age`)."""

    def drop_paced(self) -> None:
        """What waits to be told is void."""
        self.paced, self.paced_bytes = [], 0


class Queued(msgspec.Struct):
    """A client command that waits for its turn in the ordered input, or a refusal that must keep the order."""

    no: CommandNo | None
    command: DuplexCommand | None
    cost: int = 0
    refusal: InputRefused | None = None
    pcm: bytes | None = None
    """The sound of an append that waits for its verdict, at the model's rate."""


class Part(msgspec.Struct, array_like=True, gc=False):
    """One append in a question to the speech detector."""

    frames: int
    """How many frames it completes."""
    held: int
    """How many samples waited before it."""


class Waiting(msgspec.Struct, array_like=True):
    """What the speech detector is being asked about: the appends at the head of the queue. The rest is the
    state of `Detection` once they are applied."""

    parts: list[Part]
    rest: bytes
    resampler: bytes


class Intake(msgspec.Struct):
    """The ordered input: what is queued, what was heard since the last commit."""

    queue: list[Queued] = []
    queue_bytes: int = 0
    offload: int = 0
    """The ticket that the queue waits for; 0: none."""
    tickets: int = 0
    waiting: Waiting | None = None
    """The ticket is a question to the speech detector, about this."""
    ears_carry: bytes = b""
    """While sound is converted and not applied: where the converter stood before it."""
    clock_ms: float = 0.0
    """Session input time: how much audio was accepted."""
    append_ms: float = 0.0
    """How long the last append was: how far apart they may be expected."""
    speech_item: str = ""
    """The item that `speech_started` announced."""
    heard_speech: bool = False
    heard_silence: bool = False
    hints: list[str] = []
    overlap_speech_ms: float = 0.0
    unanswered: int = 0
    """User items that no response was made from."""
    deferred: bool = False
    deferred_response: bool = False
    awaiting: list[str] = []
    """Items of committed turns whose transcript the model still owes (`answers="plan"`)."""
    answer_due: bool = False
    """The open response is made as soon as the last of them has its transcript, and the last call of the turn that
    it answers its result."""
    answer_after: bool = False
    """A user turn ended while a response was open: answer it when that one ends."""
    speech_open: bool = False
    gap_at: float = -1.0
    """When the next silent unit of a media gap is due; -1: none."""
    gap_units: int = 0
    released: CommandNo = CommandNo()
    """Commands up to this one do not wait for the output: an attachment waits for them."""
    again: list[Applied] = []
    """What an owner before us applied ahead of older commands, which it did not: these are sent again, those too."""
    results: int = 0
    """Results of function calls that no response was made from (`answers="plan"`)."""


class OpenResponse(msgspec.Struct):
    """The response that is being made."""

    id: str
    epoch: int
    turn_id: int
    promised: bool
    """Opened by a commit or `response.create`, before the model said anything."""
    speaks: bool
    """Audio is wanted."""
    format: AudioFormat
    modalities: tuple[str, ...]
    metadata: dict[str, object] | None = None
    in_history: bool = True
    announced: bool = True
    """`response.created` was accepted by the output buffer; of another no ending is told."""
    spoke: bool = False
    has_audio: bool = False
    has_text_part: bool = False
    text: str = ""
    continuations: int = 0
    next_silence_at: float = -1.0
    options: dict[str, object] = {}
    calls: list[tuple[str, str, str]] = []
    """Function calls that wait for its end (OpenAI dialects: one response at a time)."""
    usage: Usage | None = None
    """What the model has counted of it."""


class HistoryItem(msgspec.Struct, array_like=True):
    """One item of the conversation. `item` is what the wire shows; what was heard is in the ledger."""

    item: Item
    response_id: str = ""
    shown: bool = True
    in_context: bool = True
    done: bool = True
    settled: str | None = None
    """What was heard of it, once its ledger has been given up."""


class ToolCallState(msgspec.Struct, array_like=True, gc=False):
    """A function call of the model, until it is answered or settled; or one that the client wrote."""

    call_id: str
    item_id: str
    opened_at: float
    state: str = "open"
    """open, given (by the client), answered, late (settled as incomplete), stale (cancelled)"""


class Life(msgspec.Struct):
    """Attachment and the clocks of the session."""

    generation: int = 0
    detached_at: float = -1.0
    active_at: float = 0.0
    warned: bool = False
    faults: list[float] = []
    closing: bool = False
    """The terminal event has been emitted; nothing follows it."""
    closed: bool = False
    """It has left, and the shell was told to free everything."""
    reason: str = ""


class PendingAbort(msgspec.Struct):
    """Units whose fate the workers still owe after an abort; nothing is submitted before it is known."""

    units: list[int] = []
    dropped: list[int] = []
    since: float = -1.0


class Rebuilding(msgspec.Struct):
    """What becomes of the context that the stages hold (see `rebuild`)."""

    reason: str = ""
    """Not empty: it is lost for this reason, and the stages that open next are to be given it."""
    due: str = ""
    """Not empty: the session binds anew for this reason as soon as nothing is being said."""
    opened: StageFence | None = None
    """The stages are being given it, under this fence."""
    began: float = 0.0
    ticket: int = 0
    last: int = -1
    """The number of the last replay; they count downwards."""
    units: int = 0
    """Replays that went through."""
    queued_bytes: int = 0
    """How much live sound waited when it began."""
    deaths: int = 0
    """How often replays were under way when a worker died."""
    recorded: int = -1
    """The last unit that was recorded; an account that comes late of one before it is void."""


class Applied(msgspec.Struct, frozen=True, gc=False):
    """How far the client's commands went."""

    no: CommandNo = CommandNo()
    event_id: str | None = None
    audio_end_ms: int = 0


class Totals(msgspec.Struct, gc=False):
    """What the session came to, over all its owners: for its account at the end."""

    input_ms: float = 0.0
    """Sound that was taken in."""
    output_ms: float = 0.0
    """Sound of responses that have ended, heard or not."""
    responses: int = 0
    cancelled: int = 0
    failed: int = 0
    """Of the responses; the others were completed."""
    interruptions: int = 0
    """Times that somebody spoke over an answer and stopped it."""

    def since(self, before: Totals) -> Totals:
        """What has been added since then."""
        return Totals(*(getattr(self, name) - getattr(before, name) for name in self.__struct_fields__))

    def plus(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


STATE_VERSION: Final = 1
"""Of a state as bytes. A field that is added with a default leaves it as it is: an older process passes over it. Any
other change raises it; a process reads its own version and the one before, and leaves a newer one alone."""


class DuplexEngineSession(msgspec.Struct):
    session_id: str
    seed: bytes
    owner: int
    dialect: Dialect
    config: SessionConfig
    limits: SessionLimits
    opened_unix_s: float
    max_sessions: int
    now: float = 0.0
    epoch: int = 0
    turn_id: int = 0
    binding: int = 1
    ready: bool = False
    was_ready: bool = False
    turn_state: str = "idle"
    ids: int = 0
    events: int = 0
    next_unit: int = 0
    locked: bool = False
    """The model has been given its first unit: its instructions stand."""
    voiced: bool = False
    """Audio was generated: its voice stands."""
    last_submit_at: float = 0.0
    urgent: bool = False
    """The next unit begins a response: it goes before later units of other sessions."""
    last_response_id: str = ""
    response: OpenResponse | None = None
    ledgers: dict[str, PlaybackLedger] = {}
    history: list[HistoryItem] = []
    calls: list[ToolCallState] = []
    used: Usage | None = None
    """What the model has counted, of the whole session."""
    totals: Totals = msgspec.field(default_factory=Totals)
    """`input_ms` is not kept here: it is the clock of the intake."""
    stale: dict[str, int] = {}
    outbox: DuplexOutputBuffer = msgspec.field(default_factory=DuplexOutputBuffer)
    intake: Intake = msgspec.field(default_factory=Intake)
    sound: Sound = msgspec.field(default_factory=Sound)
    detection: Detection = msgspec.field(default_factory=Detection)
    life: Life = msgspec.field(default_factory=Life)
    aborting: PendingAbort = msgspec.field(default_factory=PendingAbort)
    rebuild: Rebuilding = msgspec.field(default_factory=Rebuilding)
    applied: Applied = Applied()
    ahead: list[Applied] = []
    """Commands that did not wait for the queue and were applied before older ones."""
    saving: Applied = Applied()
    covered: Applied = Applied()
    plugin_state: msgspec.Raw = msgspec.Raw(b"\xc0")
    version: int = STATE_VERSION
    echoes: Echoes = msgspec.field(default_factory=Echoes)
    """In an heir: what its last owner told beyond the checkpoint."""

    @property
    def fence(self) -> StageFence:
        return StageFence(self.owner, self.binding, self.epoch)

    def item_of(self, item_id: str) -> HistoryItem | None:
        return next((entry for entry in reversed(self.history) if entry.item.id == item_id), None)
