"""How a session comes to be here: examined, owned in the store, its machine made.

Rule 1. What can be refused is refused before the store knows of the session: a client whose first update was
        wrong may try again under the same id. The machine is pure, so opening it once more to ask is free of
        consequences.
Rule 2. A store that does not answer is asked again with the same attempt, for `OPEN_DEADLINE_S`; then the
        open is refused and whatever the store may have done is released.
Rule 3. An opening belongs to its gateway: if that is lost meanwhile, the session is closed as it opens.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import ClientInput, OpenSession
from duologue.fence import Owner
from duologue.model.plugin import DuplexModelPlugin
from duologue.protocol.realtime.dialect import Dialect
from duologue.protocol.realtime.errors import RealtimeProtocolError
from duologue.session.core.effects import SessionEffect
from duologue.session.core.limits import SessionLimits
from duologue.session.pipelines import Pipelines, ServedPipeline
from duologue.session.port import SessionMachine
from duologue.session.refusals import exhausted, store_away
from duologue.session.surroundings import Surroundings
from duologue.store.ports import Owned, Refused, SessionRecord, StoreUnavailable

OPEN_DEADLINE_S: Final = 1.0
"""How long an open waits for the store: a client that is told to come again soon is better off than one that waits."""
UNDO_S: Final = 30.0
"""How long it is tried to take back what the store may have done for an open that was given up."""
MAX_UNDONE: Final = 256
"""Such opens at once; beyond it the keys are left to expire."""
MAX_EARLY: Final = 64
"""Commands that may come for a session that is still being opened."""
_RETRY_S: Final = 0.1
_UNDO_RETRY_S: Final = 0.5

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class OpenMachine(Protocol):
    """`DuplexSessionMachine.open`. Raises RealtimeProtocolError."""

    def __call__(
        self,
        *,
        session_id: str,
        seed: bytes,
        owner: int,
        dialect: Dialect,
        model: str,
        plugin: DuplexModelPlugin[Any],
        limits: SessionLimits,
        request: dict[str, Any],
        update_event_id: str | None,
        announced: bool,
        opened_unix_s: float,
        max_sessions: int,
    ) -> tuple[SessionMachine, list[SessionEffect]]: ...


class Beginning(msgspec.Struct, frozen=True):
    """How a session was opened: an heir that finds no checkpoint opens it once more, to the same."""

    dialect: str
    request: bytes
    """The session object of the first message, JSON."""
    seed: bytes
    opened_unix_s: float
    update_event_id: str | None = None
    announced: bool = False
    max_session_s: float = 0.0


class StoredExtra(msgspec.Struct, frozen=True):
    """`SessionRecord.extra`: what whoever resumes or adopts the session must know."""

    pipeline: str
    beginning: Beginning | None = None


class Opening:
    """One session on its way. `abandoned`: its gateway is gone, or its client is."""

    def __init__(
        self, link: Link, message: OpenSession, request: dict[str, Any], pipeline: ServedPipeline, body: bytes = b"{}"
    ) -> None:
        """`body`: the session object as it came."""
        self.link = link
        self.message = message
        self.session_id = message.session_id
        self.dialect = message.dialect
        self.request = request
        """The same, decoded."""
        self.pipeline = pipeline
        self.attempt = secrets.token_hex(8)
        self.seed = secrets.token_bytes(16)
        self.opened_unix_s = time.time()
        self.beginning = Beginning(
            message.dialect,
            body,
            self.seed,
            self.opened_unix_s,
            message.update_event_id,
            message.announced,
            message.max_session_s,
        )
        self.abandoned = False
        self.early: list[tuple[ClientInput, Sequence[bytes]]] = []

    def keep(self, message: ClientInput, frames: Sequence[bytes]) -> bool:
        """A command that came early. False: there are too many."""
        if len(self.early) >= MAX_EARLY:
            return False
        self.early.append((message, frames))
        return True

    def described(self, owner: int) -> dict[str, Any]:
        """How the machine was opened, for a recording."""
        return {
            "session_id": self.session_id,
            "seed": self.seed.hex(),
            "owner": owner,
            "dialect": self.dialect,
            "model": self.pipeline.name,
            "request": self.request,
            "update_event_id": self.message.update_event_id,
            "announced": self.message.announced,
            "opened_unix_s": self.opened_unix_s,
        }


@dataclass(frozen=True, slots=True)
class Opened:
    """The record is this shard's, and the machine is made; nothing of it has been performed."""

    opening: Opening
    owner: Owner
    machine: SessionMachine
    effects: list[SessionEffect]


class Opener:
    """Opens sessions one by one, several at a time."""

    def __init__(
        self,
        *,
        incarnation: str,
        pipelines: Pipelines,
        open_machine: OpenMachine,
        limits: SessionLimits,
        surroundings: Surroundings,
        deadline_s: float = OPEN_DEADLINE_S,
    ) -> None:
        self.surroundings = surroundings
        self._incarnation = incarnation
        self._pipelines = pipelines
        self._open_machine = open_machine
        self._limits = limits
        self._deadline_s = deadline_s
        self.undoing = 0
        """Opens that were given up and may have left something in the store."""

    def examine(self, link: Link, message: OpenSession, body: bytes) -> Opening:
        """The opening, or RealtimeProtocolError: nothing has happened yet."""
        try:
            request = _decoder.decode(body) if body else {}
        except msgspec.DecodeError as error:
            raise RealtimeProtocolError("invalid_session_config", str(error), param="session") from None
        if not isinstance(request, dict):
            raise RealtimeProtocolError("invalid_session_config", "session must be an object", param="session")
        pipeline = self._pipelines.find(request.get("model"))
        opening = Opening(link, message, request, pipeline, bytes(body) or b"{}")
        self._make(opening, owner=0)
        workers = self.surroundings.hub.workers
        if missing := workers.missing(pipeline.spec):
            raise exhausted(f"no stage worker for {', '.join(missing)}")
        if workers.choose(pipeline.spec) is None:
            raise exhausted("no free slot in the stage workers")
        return opening

    def _make(self, opening: Opening, owner: int) -> tuple[SessionMachine, list[SessionEffect]]:
        return self.make(opening.session_id, opening.beginning, opening.request, opening.pipeline, owner)

    def again(
        self, session_id: str, beginning: Beginning, pipeline: ServedPipeline, owner: int
    ) -> tuple[SessionMachine, list[SessionEffect]]:
        """For an heir: the machine as it was at open. Raises RealtimeProtocolError, msgspec.DecodeError."""
        return self.make(session_id, beginning, _decoder.decode(beginning.request), pipeline, owner)

    def make(
        self, session_id: str, how: Beginning, request: dict[str, Any], pipeline: ServedPipeline, owner: int
    ) -> tuple[SessionMachine, list[SessionEffect]]:
        """Raises RealtimeProtocolError for what a session cannot be opened with."""
        limits = self._limits
        if how.max_session_s:
            limits = msgspec.structs.replace(limits, max_session_s=min(limits.max_session_s, how.max_session_s))
        return self._open_machine(
            session_id=session_id,
            seed=how.seed,
            owner=owner,
            dialect=Dialect(how.dialect),
            model=pipeline.name,
            plugin=pipeline.plugin,
            limits=limits,
            request=request,
            update_event_id=how.update_event_id,
            announced=how.announced,
            opened_unix_s=how.opened_unix_s,
            max_sessions=pipeline.spec.max_sessions,
        )

    def start(
        self,
        opening: Opening,
        opened: Callable[[Opened], None],
        failed: Callable[[Opening, RealtimeProtocolError], None],
    ) -> None:
        """One of the two is called, from the loop, never from inside."""
        work = self._open(opening, opened, failed)
        self.surroundings.background.start(work, f"open of {opening.session_id}")

    async def _open(
        self,
        opening: Opening,
        opened: Callable[[Opened], None],
        failed: Callable[[Opening, RealtimeProtocolError], None],
    ) -> None:
        try:
            owned = await self._own(opening)
            if isinstance(owned, Refused):
                raise RealtimeProtocolError("session_exists", "the session id is in use")
        except RealtimeProtocolError as error:
            return failed(opening, error)
        except (StoreUnavailable, TimeoutError):
            self._give_up(opening)
            return failed(opening, store_away())
        try:
            machine, effects = self._make(opening, owned.owner.number)
        except RealtimeProtocolError as error:
            self.surroundings.cleanup.release(opening.session_id, owned.owner)
            return failed(opening, error)
        return opened(Opened(opening, owned.owner, machine, effects))

    async def _own(self, opening: Opening) -> Owned | Refused:
        """Raises StoreUnavailable or TimeoutError: what the store has done is unknown."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._deadline_s
        while True:
            try:
                async with asyncio.timeout_at(max(until, loop.time() + _RETRY_S)):
                    return await self._attempt(opening)
            except StoreUnavailable:
                if loop.time() >= until or opening.abandoned:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def _attempt(self, opening: Opening) -> Owned | Refused:
        message = opening.message
        record = SessionRecord(
            principal=message.principal,
            dialect=message.dialect,
            token_digest=message.token_digest,
            gateway=message.gateway,
            extra=msgspec.msgpack.encode(StoredExtra(opening.pipeline.name, opening.beginning)),
        )
        return await self.surroundings.store.own(
            opening.session_id, incarnation=self._incarnation, create=record, attempt=opening.attempt
        )

    def _give_up(self, opening: Opening) -> None:
        """Take back, later, what the store may have done."""
        if self.undoing < MAX_UNDONE:
            self.undoing += 1
            self.surroundings.background.start(self._undo(opening), f"undoing the open of {opening.session_id}")

    async def _undo(self, opening: Opening) -> None:
        """Own it once more, by the same attempt, and release it: what came of the first one is known then."""
        loop = asyncio.get_running_loop()
        until = loop.time() + UNDO_S
        try:
            while loop.time() < until:
                try:
                    owned = await self._attempt(opening)
                except StoreUnavailable:
                    await asyncio.sleep(_UNDO_RETRY_S)
                    continue
                if isinstance(owned, Owned):
                    self.surroundings.cleanup.release(opening.session_id, owned.owner)
                return
        finally:
            self.undoing -= 1
