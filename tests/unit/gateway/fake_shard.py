"""A shard as a gateway sees it: the messages of the bus, a store, and no model at all."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from duologue.bus.link import Link, LinkHandler, Peer, PeerLost
from duologue.bus.memory import MemoryEndpoint, MemoryHub
from duologue.bus.messages import (
    Adopt,
    AnyMessage,
    AskNumbered,
    Attach,
    Attached,
    ClientInput,
    Covered,
    Delivered,
    Deliveries,
    Delivery,
    Detach,
    Kept,
    Numbered,
    OpenSession,
    Replaced,
    SessionOpened,
    SessionRefused,
    WantCovered,
)
from duologue.fence import CommandNo, DeliveryId, Owner
from duologue.model.records import PipelineRecord, ShardRecord, encode_record
from duologue.protocol.duplex import (
    DuplexCapabilities,
    DuplexCommand,
    SessionClose,
    SessionHeartbeat,
    decode_command,
)
from duologue.store.memory import MemoryStore, run_now
from duologue.store.ports import Entry, Owned, Registration, SessionRecord

Event = tuple[Delivery, bytes]


def pipeline(name: str = "loopback", **more: Any) -> PipelineRecord:
    return PipelineRecord(
        name=name,
        capabilities=DuplexCapabilities(supports_session_resume=True),
        native_turns=True,
        input_rate_hz=16_000,
        output_rate_hz=24_000,
        max_sessions=more.pop("max_sessions", 4),
        **more,
    )


class Held:
    """One session of the fake."""

    def __init__(self, owner: Owner, link: Link | None) -> None:
        self.owner = owner
        self.link: Link | None = link
        self.generation = 1
        self.n = 0
        self.reported: tuple[int, DeliveryId] = (0, DeliveryId())
        self.unacked: deque[Event] = deque()
        self.kept: list[Entry] = []
        """What it adds to the journal for the next gateway that attaches."""
        self.end: Delivery | None = None
        self.commands: list[tuple[CommandNo, DuplexCommand]] = []
        self.detached: list[tuple[int, bool]] = []


class FakeShard(LinkHandler):
    """Answers opens, attaches and heartbeats; `say` makes up events."""

    def __init__(self, hub: MemoryHub, store: MemoryStore, name: str = "shard-1") -> None:
        self.name = name
        self.incarnation = f"{name}-a"
        self.store = store
        self.sessions: dict[str, Held] = {}
        self.refuse: tuple[str, int] | None = None
        self.opened_with: list[tuple[OpenSession, dict[str, Any]]] = []
        self.attached_with: list[Attach] = []
        self.silent = False
        self.wanted_covered: list[str] = []
        self.inherits = False
        """It takes over what a gateway asks it to."""
        self.heard = asyncio.Event()
        self.kept: list[Kept] = []
        self.detached_at: list[int] = []
        """How many of those had come at each detach."""
        self.says_before_it_answers: dict[str, Any] | None = None
        """It answers no open and no attach."""
        self.endpoint: MemoryEndpoint = hub.endpoint(Peer(name, "shard", self.incarnation), self, f"memory://{name}")

    def registration(self, *pipelines: PipelineRecord, max_sessions: int = 8, **record: Any) -> Registration:
        shard = ShardRecord(pipelines or (pipeline(),), len(self.sessions), max_sessions, **record)
        return Registration("shard", self.name, self.incarnation, self.endpoint.address, extra=encode_record(shard))

    def register(self, *pipelines: PipelineRecord, **record: Any) -> None:
        own = self.registration(*pipelines, **record)
        run_now(self.store.registry.beat(own, join=True, expiry_s=3600))

    # -- events -----------------------------------------------------------------------------------------

    def say(self, session_id: str, *events: dict[str, Any], close_code: int = 0, close_reason: str = "") -> None:
        """Deliver these events; the last one may be the terminal one."""
        held = self.sessions[session_id]
        batch: list[Event] = []
        for event in events:
            held.n += 1
            last = event is events[-1]
            what = Delivery(
                held.n,
                close_code=close_code if last else 0,
                close_reason=close_reason if last else "",
            )
            batch.append((what, json.dumps({"event_id": f"event_{held.n}", **event}).encode()))
        held.unacked.extend(batch)
        held.end = batch[-1][0] if close_code else held.end
        self._deliver(session_id, held, batch)

    def _deliver(self, session_id: str, held: Held, batch: Sequence[Event]) -> None:
        if held.link is not None and batch:
            message = Deliveries(session_id, held.owner, tuple(what for what, _ in batch))
            assert held.link.send(message, [body for _, body in batch])

    def cover(self, session_id: str) -> None:
        """Every command that came is in a checkpoint."""
        held = self.sessions[session_id]
        assert held.link is not None
        held.link.send(Covered(session_id, held.owner, held.commands[-1][0]))

    # -- LinkHandler ------------------------------------------------------------------------------------

    def on_ready(self, link: Link) -> None: ...

    def on_credit(self, link: Link) -> None: ...

    def on_lost(self, link: Link, lost: PeerLost) -> None:
        for held in self.sessions.values():
            if held.link is link:
                held.link = None

    def on_message(self, link: Link, message: AnyMessage, frames: Sequence[bytes]) -> None:
        self.heard.set()
        if isinstance(message, OpenSession):
            self._open(link, message, json.loads(frames[0]))
        elif isinstance(message, Attach):
            self._attach(link, message)
        elif isinstance(message, ClientInput):
            self._input(message, frames)
        elif isinstance(message, Kept):
            self.kept.append(message)
        elif isinstance(message, Detach):
            self.detached_at.append(len(self.kept))
            held = self.sessions.get(message.session_id)
            if held is not None:
                held.detached.append((message.generation, message.clean))
                if message.generation == held.generation:
                    held.link = None
        elif isinstance(message, WantCovered):
            self.wanted_covered.append(message.session_id)
        elif isinstance(message, Delivered):
            held = self.sessions.get(message.session_id)
            if held is not None:
                held.reported = max(held.reported, (message.seq, message.through))
            while held and held.unacked and held.unacked[0][0].n <= message.through.n:
                held.unacked.popleft()
        elif isinstance(message, Adopt) and self.inherits:
            self._adopt(message)
        elif isinstance(message, AskNumbered) and not self.silent:
            held = self.sessions.get(message.session_id)
            link.send(Numbered(message.session_id, 0 if held is None else held.reported[0]))

    def _open(self, link: Link, message: OpenSession, session: dict[str, Any]) -> None:
        self.opened_with.append((message, session))
        if self.silent:
            return
        if self.refuse is not None:
            code, close_code = self.refuse
            error = {"type": "invalid_request_error", "code": code, "message": "no", "param": None}
            body = json.dumps({"type": "error", "error": {**error, "event_id": None, "retryable": False}})
            link.send(SessionRefused(message.session_id, code, close_code), [body.encode()])
            return
        extra = msgspec.msgpack.encode({"pipeline": str(session.get("model", ""))})
        record = SessionRecord(message.principal, message.dialect, message.token_digest, message.gateway, extra=extra)
        owned = run_now(self.store.sessions.own(message.session_id, incarnation=self.incarnation, create=record))
        assert isinstance(owned, Owned), owned
        self.sessions[message.session_id] = Held(owned.owner, link)
        link.send(SessionOpened(message.session_id, owned.owner), [self._object(message.session_id)])
        self.say(message.session_id, {"type": "session.updated", "session": session})

    def _adopt(self, message: Adopt) -> None:
        session_id = message.session_id
        owned = run_now(self.store.sessions.own(session_id, incarnation=self.incarnation, taken_from=message.lost))
        if isinstance(owned, Owned):
            run_now(self.store.journal.fence(session_id, owned.owner))
            self.sessions[session_id] = Held(owned.owner, None)

    def _object(self, session_id: str) -> bytes:
        return json.dumps({"id": session_id, "object": "realtime.session", "type": "realtime"}).encode()

    def _attach(self, link: Link, message: Attach) -> None:
        self.attached_with.append(message)
        if self.silent:
            return
        held = self.sessions[message.session_id]
        if self.says_before_it_answers is not None:
            self.say(message.session_id, self.says_before_it_answers)
        if held.link is not None and held.link is not link:
            held.link.send(Replaced(message.session_id, message.generation))
        held.link, held.generation = link, message.generation
        items = b'[{"id":"m1"}]' if message.after_gap else b""
        journaled = self._journal(message, held)
        numbered = *held.reported, held.end, journaled
        answer = Attached(message.session_id, message.generation, held.owner, CommandNo(), "evt_9", 320, *numbered)
        link.send(answer, [self._object(message.session_id), items])
        self._deliver(message.session_id, held, list(held.unacked))

    def _journal(self, message: Attach, held: Held) -> int:
        kept, held.kept = held.kept, []
        if not kept:
            return 0
        first = message.journaled + 1
        run_now(self.store.journal.append(message.session_id, held.owner, message.egress, first, kept))
        return message.journaled + len(kept)

    def _input(self, message: ClientInput, frames: Sequence[bytes]) -> None:
        held = self.sessions.get(message.session_id)
        if held is None or message.no.generation != held.generation:
            return
        command = decode_command(message.command).attach(frames) if frames else decode_command(message.command)
        held.commands.append((message.no, command))
        if isinstance(command, SessionHeartbeat):
            self.say(message.session_id, {"type": "session.heartbeat_ack", "session_id": message.session_id})
        elif isinstance(command, SessionClose):
            closed = {"type": "session.closed", "session_id": message.session_id, "reason": command.reason}
            self.say(message.session_id, closed, close_code=1000, close_reason=command.reason)
