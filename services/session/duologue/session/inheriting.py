"""Taking over the sessions of a shard that is no more, or that hands them over.

Order: own the session (from here on the old owner is refused everywhere), fence the journal (from here on it says
for good what was told), read the checkpoint, restore, save, and only then tell anybody.

Rule 1. A session is taken from one incarnation by name: of several heirs one takes it, and nobody robs another owner.
Rule 2. At most `MAX_RUNNING` at a time; the others wait in order, each once. An heir takes up to half as many again
        as it takes of new sessions.
Rule 3. A store that does not answer is asked again with the same attempt, for `PATIENCE_S`; whatever was done by then
        is found again by whoever tries next: a session that is ours and not here is taken up by us.
Rule 4. A gateway that attaches to a session on its way is answered when it is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import Attach, OwnerChanged
from duologue.fence import DeliveryId, Owner
from duologue.model.plugin import DuplexModelPlugin
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.session.admission import Admission
from duologue.session.core.commands import Adopted
from duologue.session.core.effects import SessionEffect
from duologue.session.core.opening import is_newer
from duologue.session.opening import Beginning, StoredExtra
from duologue.session.pipelines import Pipelines, ServedPipeline
from duologue.session.port import SessionMachine
from duologue.session.refusals import refused
from duologue.session.surroundings import Surroundings
from duologue.store.ports import Activated, Head, Refused, StoreUnavailable

_log = logging.getLogger("duologue.session")
_extra = msgspec.msgpack.Decoder(StoredExtra)
_T = TypeVar("_T")

MAX_RUNNING: Final = 16
MAX_WAITING: Final = 4096
PATIENCE_S: Final = 10.0
_RETRY_S: Final = 0.1
_PAGE: Final = 64


class RestoreMachine(Protocol):
    """`DuplexSessionMachine.restore`. Raises ValueError for what it cannot read."""

    def __call__(self, body: bytes, *, plugin: DuplexModelPlugin[Any], owner: int) -> SessionMachine: ...


class OpenAgain(Protocol):
    """`Opener.again`."""

    def __call__(
        self, session_id: str, beginning: Beginning, pipeline: ServedPipeline, owner: int
    ) -> tuple[SessionMachine, list[SessionEffect]]: ...


@dataclass(frozen=True, slots=True)
class Inherited:
    """A session that is this shard's now, restored; its first effects are not performed yet."""

    session_id: str
    dialect: str
    pipeline: ServedPipeline
    owner: Owner
    machine: SessionMachine
    effects: list[SessionEffect]
    head: Head
    found: Activated
    saved: bool
    """It had been saved by its owner before; else it is opened anew."""

    def described(self, owner: int) -> dict[str, Any]:
        """For a recording."""
        return {"session_id": self.session_id, "owner": owner, "model": self.pipeline.name, "adopted": True}


class CannotInherit(Exception):
    """Why the session is not taken over; the text is the outcome that is counted."""


class Inheritance:
    """See the module. `arrived` is called, from the loop, for each session that is here, `failed` when
    one came to nothing."""

    def __init__(
        self,
        *,
        incarnation: str,
        pipelines: Pipelines,
        restore: RestoreMachine,
        reopen: OpenAgain,
        admission: Admission,
        surroundings: Surroundings,
        arrived: Callable[[Inherited], None],
        failed: Callable[[], None],
        took_s: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        """Takeovers that came to an end, by what came of them."""
        self.incarnation = incarnation
        self._pipelines = pipelines
        self._restore = restore
        self._open = reopen
        self._admission = admission
        self._around = surroundings
        self._arrived = arrived
        self._failed = failed
        self._took_s = took_s
        self._running: set[str] = set()
        self._waiting: dict[str, str] = {}
        """Session, and whom it is taken from."""
        self._parked: dict[str, tuple[Link, Attach]] = {}

    def __len__(self) -> int:
        """How many are on their way."""
        return len(self._running) + len(self._waiting)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._running or session_id in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter((*self._running, *self._waiting))

    def take(self, session_id: str, lost: str) -> bool:
        """Take the session over from the incarnation `lost`. False: it is on its way, or too many are."""
        if session_id in self:
            return False
        if len(self._waiting) >= MAX_WAITING:
            self.outcomes["too_many"] += 1
            return False
        self._waiting[session_id] = lost
        self._next()
        return True

    def attach(self, link: Link, message: Attach) -> None:
        """A gateway attaches to a session that is not here: if it is ours it is taken up, else the gateway is told."""
        known = self._parked.get(message.session_id)
        if known is None or known[1].generation <= message.generation:
            self._parked[message.session_id] = link, message
        self.take(message.session_id, self.incarnation)

    def parked(self, session_id: str) -> tuple[Link, Attach] | None:
        """The attachment that waits for this session; it is the caller's now."""
        return self._parked.pop(session_id, None)

    def link_lost(self, link: Link) -> None:
        for session_id, (waiting, _) in list(self._parked.items()):
            if waiting is link:
                del self._parked[session_id]

    def _next(self) -> None:
        while self._waiting and len(self._running) < MAX_RUNNING:
            session_id = next(iter(self._waiting))
            lost = self._waiting.pop(session_id)
            self._running.add(session_id)
            self._around.background.start(self._take(session_id, lost), f"adoption of {session_id}")

    async def _take(self, session_id: str, lost: str) -> None:
        began = asyncio.get_running_loop().time()
        outcome = "failed"
        try:
            inherited = await self._inherit(session_id, lost)
        except CannotInherit as error:
            outcome = str(error)
        except (StoreUnavailable, TimeoutError):
            outcome = "store_away"
        else:
            outcome = "adopted" if lost != self.incarnation else "taken_up"
            self._running.discard(session_id)
            self._arrived(inherited)
            self._took_s(asyncio.get_running_loop().time() - began)
        finally:
            self._running.discard(session_id)
            self._count(session_id, outcome)
            self._next()

    def _count(self, session_id: str, outcome: str) -> None:
        self.outcomes[outcome] += 1
        if outcome in ("adopted", "taken_up"):
            _log.info("session %s goes on here", session_id)
            return
        _log.info("session %s is not taken over: %s", session_id, outcome)
        self._admission.give_back(session_id)
        parked = self._parked.pop(session_id, None)
        if parked is not None and outcome in ("gone", "unreadable"):
            error = RealtimeProtocolError("session_resume_expired", "the session has ended")
            parked[0].send(*refused(session_id, error, "duplex"))
        elif parked is not None:
            parked[0].send(OwnerChanged(session_id, Owner()))
        self._failed()

    # -- the steps -------------------------------------------------------------------------------------

    async def _inherit(self, session_id: str, lost: str) -> Inherited:
        """Raises CannotInherit, StoreUnavailable, TimeoutError."""
        store, attempt = self._around.store, secrets.token_hex(8)
        found = await self._asked(lambda: store.look_up(session_id))
        if found is None or session_id in self._around.cleanup:
            raise CannotInherit("gone")
        if found.owner.incarnation != lost:
            raise CannotInherit("taken")
        pipeline = self._place(session_id, found)
        await self._leave_newer(session_id)
        owned = await self._asked(
            lambda: store.own(session_id, incarnation=self.incarnation, taken_from=lost, attempt=attempt)
        )
        if isinstance(owned, Refused):
            raise CannotInherit("gone" if owned.reason == "gone" else "taken")
        owner = owned.owner
        head = await self._asked(lambda: self._around.journal.fence(session_id, owner))
        if not isinstance(head, Head):
            if head.reason == "gone":  # it was over, and its owner died before it had deleted the rest
                self._around.cleanup.release(session_id, owner)
            raise CannotInherit("gone" if head.reason == "gone" else "taken")
        saved = await self._asked(lambda: store.read_checkpoint(session_id))
        try:
            if saved is None and head.last_delivery == DeliveryId():  # nothing of it was told to anybody
                machine, effects = self._reopened(session_id, pipeline, owner, found)
            else:
                before = found.owner.number if saved is None else saved.owner
                blob = self._beginning(session_id, pipeline, found) if saved is None else saved.blob
                machine = self._restore(blob, plugin=pipeline.plugin, owner=owner.number)
                made = DeliveryId(before, machine.made)
                told, short = await self._told(session_id, head, made)
                adopted = Adopted(owner.number, head.last_delivery, before, told, short)
                effects = list(machine.handle(adopted, machine.time))
                if machine.gap:  # a number that nobody gets: whoever has less is told of a gap
                    head = msgspec.structs.replace(head, last_seq=head.last_seq + 1)
                    self.outcomes["gap"] += 1
        except (ValueError, RealtimeProtocolError) as error:
            _log.error("session %s cannot be restored: %s", session_id, error)
            self._around.cleanup.release(session_id, owner)
            raise CannotInherit("unreadable") from None
        return Inherited(
            session_id, found.record.dialect, pipeline, owner, machine, effects, head, found, saved is not None
        )

    async def _leave_newer(self, session_id: str) -> None:
        """What a newer version wrote is not taken from its owner: a shard that can read it will come. Raises
        CannotInherit, StoreUnavailable."""
        saved = await self._asked(lambda: self._around.store.read_checkpoint(session_id))
        with contextlib.suppress(ValueError):  # unreadable: told when it is ours
            if saved is not None and is_newer(saved.blob):
                raise CannotInherit("newer_version")

    def _place(self, session_id: str, found: Activated) -> ServedPipeline:
        try:
            pipeline = self._pipelines.find(_extra.decode(found.record.extra).pipeline)
        except (msgspec.DecodeError, RealtimeProtocolError):
            raise CannotInherit("not_served") from None
        try:
            self._admission.inherit(session_id, pipeline.name)
        except RealtimeProtocolError:
            raise CannotInherit("full") from None
        return pipeline

    def _reopened(
        self, session_id: str, pipeline: ServedPipeline, owner: Owner, found: Activated
    ) -> tuple[SessionMachine, list[SessionEffect]]:
        beginning = _extra.decode(found.record.extra).beginning
        if beginning is None:
            raise ValueError("it was never saved, and how it began is not known")
        return self._open(session_id, beginning, pipeline, owner.number)

    def _beginning(self, session_id: str, pipeline: ServedPipeline, found: Activated) -> bytes:
        """The checkpoint that its first owner never got stored, though it told more than that."""
        machine, _ = self._reopened(session_id, pipeline, found.owner, found)
        return machine.last_words().body

    async def _told(
        self, session_id: str, head: Head, made: DeliveryId
    ) -> tuple[tuple[tuple[DeliveryId, bytes], ...], bool]:
        """What the journal holds beyond the event `made`, and whether it is known to be less than was told. It is read
        from its end, so that of a long one no more is read than is needed."""
        told: list[tuple[DeliveryId, bytes]] = []
        through, first = head.last_seq, max(head.first_seq, 1)
        known = head.last_delivery <= made
        while not known and through >= first:
            at = max(through - _PAGE, first - 1)
            page = await self._asked(partial(self._around.journal.read, session_id, at, through - at))
            if page.gap and page.first_seq > at + 1:
                first = page.first_seq  # trimmed meanwhile, up to what its checkpoint contains
                continue
            if len(page.entries) < through - at:
                break  # a hole
            told[:0] = [(entry.delivery, entry.body) for entry in page.entries if entry.delivery > made]
            known = page.entries[0].delivery <= made
            through = at
        whole = known or through < first == 1 or (bool(told) and told[0][0] == DeliveryId(made.owner, made.n + 1))
        return tuple(told), not whole

    async def _asked(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """The store's answer, asked for again while there is none. Raises StoreUnavailable."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(_RETRY_S)
