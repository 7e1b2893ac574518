"""What the system asks of its store, as ports with typed results.

Two servers may stand behind them: `SessionStore` and `Registry` on one (durable), `Journal` and
`JournalAppender` on another. No operation touches both.

Rule 1. Owner: a lower number than the stored one is refused with the stored values; a higher one is
        written (the store was behind and heals forward); an equal number of another incarnation is refused.
Rule 2. Every operation may be repeated with the same arguments: a lost reply is answered by asking again.
Rule 3. Age is the server's `TIME`. Every write renews the time to live of the session's keys (the journal's
        hot path when an eighth of it has gone).
Rule 4. A refusal is a result. `StoreUnavailable` is raised only where the outcome is unknown: no
        connection, no answer in time, a reply that is none. Nothing waits longer than the time-out.
Rule 5. Cancelling a call never hurts another one; its outcome is unknown, exactly as if the reply was lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

import msgspec

from duologue.fence import DeliveryId, Owner


class StoreUnavailable(Exception):
    """The store did not answer: the outcome of the call is unknown. Try again later."""


# -- sessions -----------------------------------------------------------------------------------------


class SessionRecord(msgspec.Struct, frozen=True):
    """What is stored of a session beside its checkpoint. Digests are opaque bytes, never the token."""

    principal: str
    dialect: str
    token_digest: bytes
    gateway: str
    """Incarnation of the gateway that holds the attachment; empty once it has let go."""
    generation: int = 1
    extra: bytes = b""
    """Opaque, fixed at open (pipeline, limits): for whoever resumes or adopts."""


class Owned(msgspec.Struct, frozen=True):
    """The session is this incarnation's from here on; every older owner is refused."""

    owner: Owner
    record: SessionRecord


class Refused(msgspec.Struct, frozen=True):
    """Refused, with what is stored. `reason`: owner | number | generation | gone | exists."""

    reason: str
    owner: Owner = Owner()
    number: int = 0
    """The stored checkpoint number, or generation where `reason` is generation."""


class Done(msgspec.Struct, frozen=True):
    """Carried out, or found carried out already."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A confirmed checkpoint: the newest by (owner, number)."""

    owner: int
    number: int
    blob: bytes


class Activated(msgspec.Struct, frozen=True):
    """The token was good. The attachment is `record.generation`, held by `record.gateway`."""

    record: SessionRecord
    owner: Owner


class ResumeRefused(msgspec.Struct, frozen=True):
    """The code to answer a resume with, and the field it is about."""

    code: str
    """session_resume_expired | invalid_resume_token | invalid_session_resume"""
    param: str = ""


class InputEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One unit of input that a model heard, opaque. `owner` and `unit` order the entries of a session."""

    owner: int
    unit: int
    blob: bytes


class SessionStore(ABC):
    """Who owns a session, who is attached to it, and its checkpoint."""

    @abstractmethod
    async def own(
        self,
        session_id: str,
        *,
        incarnation: str,
        above: int = 0,
        create: SessionRecord | None = None,
        attempt: str = "",
        taken_from: str = "",
    ) -> Owned | Refused:
        """Take the session: the new number is above `above` and above everything stored.

        `create` opens a session that must not exist yet (else Refused `exists`); without it the session
        must exist (else Refused `gone`). `taken_from`: only from this incarnation (else Refused `owner`), so
        that of two heirs one takes it, and nobody takes it from a living owner. Repeated with the same
        `attempt` (any string unique to this attempt) it answers the same number again; without one every call
        takes a new number.
        """

    @abstractmethod
    async def hand_over(self, session_id: str, owner: Owner, heir: str) -> Owned | Refused:
        """Give the session to another shard's incarnation, under the next number: from here on the caller is
        refused, and the heir finds itself the owner."""

    @abstractmethod
    async def checkpoint(self, session_id: str, owner: Owner, number: int, blob: bytes) -> Done | Refused:
        """Store the checkpoint unless a newer one is there (then Refused `number`; equal is Done)."""

    @abstractmethod
    async def read_checkpoint(self, session_id: str) -> Checkpoint | None:
        """The newest checkpoint, or None if there is none."""

    @abstractmethod
    async def record(
        self, session_id: str, owner: Owner, entries: Sequence[InputEntry], keep: tuple[int, int] | None = None
    ) -> Done | Refused:
        """Append what was heard; an entry that is there, or before the last one there, is skipped. `keep`: forget
        what is before this owner and unit."""

    @abstractmethod
    async def recorded(self, session_id: str) -> tuple[InputEntry, ...]:
        """What was heard and not forgotten, oldest first. Units that an heir heard again stand in it once more, under
        the heir's number."""

    @abstractmethod
    async def activate(
        self,
        session_id: str,
        *,
        token_digest: bytes,
        new_digest: bytes,
        principal: str,
        dialect: str,
        gateway: str,
        live_gateways: Collection[str],
    ) -> Activated | ResumeRefused:
        """Compare and rotate the resume token, raise the generation, record `gateway` as the holder.

        The token that was presented stays valid until `confirm`, but only while the gateway that holds
        the attachment is not in `live_gateways` or has let go. Exactly one of several racing calls wins.
        """

    @abstractmethod
    async def examine(
        self,
        session_id: str,
        *,
        token_digest: bytes,
        principal: str,
        dialect: str,
        live_gateways: Collection[str],
    ) -> Activated | ResumeRefused:
        """What `activate` would answer, changing nothing: to check a cursor before the token is spent."""

    @abstractmethod
    async def confirm(self, session_id: str, generation: int) -> Done | Refused:
        """The first client frame of this generation has come: the previous token is void."""

    @abstractmethod
    async def let_go(self, session_id: str, generation: int = 0, *, new_digest: bytes = b"") -> Done | Refused:
        """The gateway holds this generation no more (socket gone, handler cancelled).

        A gateway that does not know what became of its `activate` names that call's `new_digest` instead of
        a generation: the attachment is let go if it was made, and refused whenever it comes after that.
        """

    @abstractmethod
    async def reassert(self, session_id: str, owner: Owner, record: SessionRecord) -> Done | Refused:
        """What the gateway that holds this generation knows of the session. It is written where the store lacks it, or
        has an older generation: a failover took it back in time."""

    @abstractmethod
    async def touch(self, session_id: str, owner: Owner) -> Done | Refused:
        """Renew the time to live, and re-assert the owner."""

    @abstractmethod
    async def release(self, session_id: str, owner: Owner) -> Done | Refused:
        """The session is over: delete it. What comes late is refused `gone` for a minute."""

    @abstractmethod
    async def look_up(self, session_id: str) -> Activated | None:
        """Owner and record as stored, or None. For routing; nothing is promised a moment later."""


# -- journal ------------------------------------------------------------------------------------------

ALL = DeliveryId()
"""Of no owner: nothing is compared with it."""

Entry = tuple[DeliveryId, bytes]
"""One event to journal: its delivery id and its rendered body, without `server_event_seq`."""


class Head(msgspec.Struct, frozen=True):
    """Where a session's numbering stands. `first_seq` = `last_seq` + 1 when the journal is empty."""

    owner: Owner
    egress: int
    last_seq: int
    last_delivery: DeliveryId
    first_seq: int
    bytes_kept: int = 0


class JournalRefused(msgspec.Struct, frozen=True):
    """Refused, with what is stored. `reason`: owner | egress | generation | conflict | gone."""

    reason: str
    head: Head


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The batch is in the journal, be it by this call or by an earlier one."""

    last_seq: int
    last_delivery: DeliveryId
    trimmed: int = 0
    """Older entries that the journal's bound pushed out with this call."""


class JournalEntry(msgspec.Struct, frozen=True, gc=False):
    seq: int
    delivery: DeliveryId
    body: bytes


class Replay(msgspec.Struct, frozen=True):
    """Entries from `after_seq` + 1 on. `gap`: that very entry is missing although the head is past it; then
    `entries` is empty. A hole further on ends `entries` before it; the next read then reports the gap."""

    entries: tuple[JournalEntry, ...]
    head_seq: int
    first_seq: int
    gap: bool = False


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The connection went while the batch was out: repeat it, never renumber it."""


AppendOutcome = Appended | JournalRefused | Unknown
OnAppended = Callable[[AppendOutcome], None]


class JournalAppender(ABC):
    """The hot path: batches out, outcomes back by callback. No future and no task per message."""

    reconnects: int = 0
    """Connections lost so far: what comes after one may be another server."""

    @abstractmethod
    def submit(
        self,
        session_id: str,
        owner: Owner,
        egress: int,
        first_seq: int,
        batch: Sequence[Entry],
        on_outcome: OnAppended,
    ) -> bool:
        """Append `batch` as first_seq, first_seq + 1, ...; `on_outcome` is called once, never from inside.

        False: not taken (no connection, or the bound of outstanding batches is reached), and `on_outcome`
        will not be called. All batches of one turn of the event loop leave in one write.
        """

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether `submit` has anywhere to send to."""


class Journal(ABC):
    """The replay journal of each session, and the numbering that goes with it."""

    @abstractmethod
    async def claim(
        self, session_id: str, *, owner: Owner, egress: int = 0, generation: int = 0, claimant: str = ""
    ) -> Head | JournalRefused:
        """Become the egress. The number given is at least `egress` and above the stored one.

        `generation` (0: not compared): a lower one than the stored is refused, so that a claim that comes
        late cannot unseat a newer attachment. `claimant` (any string unique to this claim): repeated, the
        claim answers the same number again.
        """

    @abstractmethod
    async def fence(self, session_id: str, owner: Owner) -> Head | JournalRefused:
        """Raise the owner without touching the egress: from here an older owner's batches are refused."""

    @abstractmethod
    async def append(
        self, session_id: str, owner: Owner, egress: int, first_seq: int, batch: Sequence[Entry]
    ) -> Appended | JournalRefused:
        """One batch, awaited: for what is not hot. See `JournalAppender.submit`."""

    @abstractmethod
    async def head(self, session_id: str) -> Head | None:
        """Where numbering stands, or None where nothing is stored."""

    @abstractmethod
    async def read(self, session_id: str, after_seq: int, limit: int = 64) -> Replay:
        """At most `limit` entries after the cursor. Compares numbers in the entries, never their position."""

    @abstractmethod
    async def trim(self, session_id: str, through_seq: int, covered: DeliveryId = ALL) -> Head | None:
        """Forget what the client has acknowledged, but no event after `covered` (of no owner: whatever it is).
        Numbering stays."""

    @abstractmethod
    async def touch(self, session_id: str, owner: Owner) -> Done | JournalRefused:
        """Renew the time to live of a silent session's journal."""

    @abstractmethod
    async def release(self, session_id: str, owner: Owner) -> Done | JournalRefused:
        """The session is over: delete its journal. What comes late is refused `gone` for a minute."""


# -- who holds what -----------------------------------------------------------------------------------


class Holdings(ABC):
    """Which sessions each shard incarnation says that it holds, in sorted sets by time: how the sessions of one that
    died are found. A hint, written now and then: the session's own record decides who owns it."""

    @abstractmethod
    async def note(self, incarnation: str, *, taken: Collection[str] = (), left: Collection[str] = ()) -> None:
        """The incarnation holds `taken` and holds `left` no more. Repeating what it holds renews it."""

    @abstractmethod
    async def holders(self) -> Collection[str]:
        """The incarnations that hold anything."""

    @abstractmethod
    async def held_by(self, incarnation: str, limit: int = 256) -> Sequence[str]:
        """At most `limit` of its sessions, those first that were named longest ago."""


# -- client secrets -----------------------------------------------------------------------------------


class ClientSecret(msgspec.Struct, frozen=True):
    """What is stored of an ephemeral secret; of the secret itself only the digest, as its key."""

    principal: str
    """Who minted it."""
    session: bytes
    """The preset of the sessions it opens, opaque."""
    expires_at: float
    """Unix seconds by the server's clock; from there on it opens no session."""
    max_session_s: float = 0.0
    """The longest that such a session may last; 0: no limit of its own."""
    fresh: bool = True
    """It still opens sessions; else it is kept for the resumes of one that it has opened."""


class SecretStore(ABC):
    """Ephemeral client secrets. They vanish by themselves."""

    @abstractmethod
    async def mint(
        self, digest: bytes, *, principal: str, session: bytes, ttl_s: float, max_session_s: float = 0.0
    ) -> ClientSecret:
        """Store a new secret. Repeated with the same digest it changes nothing and answers the same."""

    @abstractmethod
    async def look_up(self, digest: bytes) -> ClientSecret | None:
        """The secret, or None: unknown, or over."""

    @abstractmethod
    async def use(self, digest: bytes, *, resumable_s: float) -> Done | Refused:
        """A session was opened with it: it authenticates resumes for so long from now, beyond its own end.

        Refused `gone`: it is over."""


# -- registrations ------------------------------------------------------------------------------------


class Registration(msgspec.Struct, frozen=True):
    """One live process, as it last described itself."""

    kind: str
    """gateway | shard | worker"""
    id: str
    incarnation: str
    endpoint: str = ""
    capacity: int = 0
    load: int = 0
    pipelines: tuple[str, ...] = ()
    extra: bytes = b""


class Roster(msgspec.Struct, frozen=True):
    """Everybody whose registration has not expired, by the server's clock."""

    members: tuple[Registration, ...]
    replaced: bool = False
    """Another incarnation of the caller's id has joined since: the caller is not written any more."""


class Registry(ABC):
    """Who is there. Each process beats every 0.5 s; a registration expires after 2 s."""

    @abstractmethod
    async def beat(self, own: Registration, *, expiry_s: float = 2.0, join: bool = False) -> Roster:
        """Renew the caller's registration and read all of them, in one step.

        `join` takes the id over from an older incarnation: once, at start. Without it a live registration
        of another incarnation wins, and `replaced` says so.
        """

    @abstractmethod
    async def members(self, kind: str = "") -> Roster:
        """All live registrations (of one kind), writing nothing."""

    @abstractmethod
    async def remove(self, kind: str, id: str, incarnation: str) -> None:
        """Sign off. Of no effect if another incarnation holds the id."""
