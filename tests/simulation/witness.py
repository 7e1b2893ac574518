"""What the world itself saw of each session: what the store has, what was numbered, what went to which socket.

The checks here compare what leaves a gateway with what the server had at that moment. They believe no label of
the core but two: a delivery id, and how far a checkpoint says that its events go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duologue.bus.messages import Invalidate
from duologue.fence import DeliveryId
from duologue.store.ports import Appended, AppendOutcome, Entry
from duologue.store.scripts import Arg

if TYPE_CHECKING:
    from simulation.network import Event, Socket
    from simulation.nodes import Node
    from simulation.world import World

_decode = msgspec.json.Decoder().decode

AUDIO = "response.output_audio.delta"
ATTACHED = ("session.created", "session.resumed")
TRIP_ECHO_S = 2.5
STRUCTURAL_WAIT_S = 0.25
"""How long a structural event waits for its checkpoint, once; then the breaker lets it go."""


class _OutboxPeek(msgspec.Struct):
    n: int
    held: list[msgspec.Raw] = []


class _Peek(msgspec.Struct):
    """As much of a checkpoint as the witness reads."""

    owner: int
    outbox: _OutboxPeek


_peek = msgspec.msgpack.Decoder(_Peek).decode


class Seen:
    """One session."""

    def __init__(self) -> None:
        self.journaled: dict[int, DeliveryId] = {}
        """What the server has, or had, under each seq."""
        self.told: dict[int, str] = {}
        """The event that each seq was, on whatever socket."""
        self.numbered = 0
        """The highest seq that has left any process, to the journal or, while that is away, to a socket."""
        self.live: set[int] = set()
        """Numbers that went out while the store was away."""
        self.purged: dict[str, int] = {}
        """Responses whose audio was taken back, and the last seq that was out by then."""
        self.covered = DeliveryId()
        """The last event that a checkpoint in the store contains."""
        self.asked_at: float | None = None
        """When the checkpoint that the store has not answered was asked for first."""
        self.records = False
        """What it hears is kept in the store, before each checkpoint."""
        self.tripped_until = -1.0
        """Structural events that did not wait may still be under way until then."""
        self.released = False
        """Its journal is gone, and with it what could wait for it."""
        self.beyond: dict[int, str] = {}
        """Structural events in the journal, by seq, that no checkpoint contained as they got there."""
        self.fenced_by = 0
        """The owner number from which on the journal is written."""
        self.saved_by = 0
        """The highest owner number that has saved it."""
        self.owner_over = False
        """Somebody else owns it: from here on nothing of it may change in the store."""

    def behind(self, seq: int) -> bool:
        """The store still has to be given numbers before this one, which went out while it was away. What is below the
        journal's last number it takes no more."""
        last = max(self.journaled, default=0)
        return any(last < number < seq for number in self.live)


class Witness:
    """Hears of everything at the moment at which it happens."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[str, Seen] = {}

    def of(self, session_id: str) -> Seen:
        seen = self._seen.get(session_id)
        if seen is None:
            seen = self._seen[session_id] = Seen()
        return seen

    # -- the store -------------------------------------------------------------------------------------

    def checkpointed(self, session_id: str, owner: int, blob: Any) -> None:
        """The server has this checkpoint."""
        seen = self.of(session_id)
        if seen.owner_over:
            self._world.fail(f"{session_id}: a replaced owner has written a checkpoint")
        if owner < seen.saved_by:
            self._world.fail(f"{session_id}: owner {owner} has written a checkpoint after owner {seen.saved_by}")
        seen.saved_by = owner
        peek = _peek(blob)
        self._world.count["checkpoint held an event"] += bool(peek.outbox.held)
        seen.covered = max(seen.covered, DeliveryId(owner, peek.outbox.n))
        seen.beyond = {seq: kind for seq, kind in seen.beyond.items() if seen.journaled[seq] > seen.covered}

    def fenced(self, session_id: str, owner: int) -> None:
        """An heir has the journal: no older owner may write there."""
        seen = self.of(session_id)
        if owner > seen.fenced_by:
            self._world.count["told beyond the checkpoint"] += bool(seen.beyond)
            for kind in seen.beyond.values():
                self._world.count[f"beyond: {kind}"] += 1
        seen.fenced_by = max(seen.fenced_by, owner)

    def checkpoint_asked(self, session_id: str) -> None:
        """A shard sends a checkpoint, perhaps again."""
        seen = self.of(session_id)
        if seen.asked_at is None:
            seen.asked_at = self._world.now

    def checkpoint_answered(self, session_id: str) -> None:
        """The shard hears that it is stored, or refused."""
        seen = self.of(session_id)
        if self._tripped(seen):
            seen.tripped_until = self._world.now + TRIP_ECHO_S
        seen.asked_at = None

    def recording(self, session_id: str) -> None:
        """A shard sends what was heard."""
        self.of(session_id).records = True

    def _tripped(self, seen: Seen) -> bool:
        """A checkpoint stays away for so long that structural events do not wait for it. How long one has waited
        for what was heard to be kept is not seen here: it may have, while the store is unwell."""
        if seen.records and self._world.depot.troubled:
            return True
        return seen.asked_at is not None and self._world.now >= seen.asked_at + STRUCTURAL_WAIT_S

    def submitted(self, session_id: str, first_seq: int, entries: Sequence[Entry]) -> None:
        """A process sends a batch to the journal."""
        seen = self.of(session_id)
        for seq, (id, body) in enumerate(entries, first_seq):
            if seq <= seen.numbered:
                continue
            kind = kind_of(body)
            if kind == AUDIO:
                self._check_purged(session_id, seen, seq, _decode(body))
            elif id > seen.covered and is_structural(kind, body) and not self._may_pass(session_id):
                self._world.fail(f"{session_id}: {kind} ({id}) left before a checkpoint with it was stored")
        seen.numbered = max(seen.numbered, first_seq + len(entries) - 1)

    def appended(
        self, session_id: str, args: Sequence[Arg], first_seq: int, entries: Sequence[Entry], outcome: AppendOutcome
    ) -> None:
        """The server has carried out an append."""
        seen = self.of(session_id)
        if not isinstance(outcome, Appended):
            return
        for seq, (id, body) in enumerate(entries, first_seq):
            if id > seen.covered and seq not in seen.journaled and is_structural(kind := kind_of(body), body):
                seen.beyond[seq] = kind
            if seen.owner_over and seq not in seen.journaled:
                self._world.fail(f"{session_id}: a replaced owner has written seq {seq}")
            if int(args[3]) < seen.fenced_by and seq not in seen.journaled:
                self._world.fail(f"{session_id}: owner {args[3]!r} has written seq {seq} after owner {seen.fenced_by}")
            known = seen.journaled.setdefault(seq, id)
            if known != id:
                self._world.fail(f"{session_id}: seq {seq} is {known} and {id}")

    def _may_pass(self, session_id: str) -> bool:
        """Structural events of this session do not wait for a checkpoint now, or did not just now."""
        seen = self.of(session_id)
        return self._world.now < seen.tripped_until or self._tripped(seen)

    # -- the bus ---------------------------------------------------------------------------------------

    def invalidated(self, node: Node, message: Invalidate) -> None:
        """A gateway is told to forget a response's audio."""
        seen = self.of(message.session_id)
        seen.purged.setdefault(message.response_id, seen.numbered)
        if node.stores.appender.outstanding(message.session_id):
            self._world.count["cancel with a batch outstanding"] += 1

    def _check_purged(self, session_id: str, seen: Seen, seq: int, event: Event) -> None:
        last = seen.purged.get(event["response_id"])
        if last is not None and seq > last:
            self._world.fail(f"{session_id}: seq {seq} is audio that was taken back when {last} was the last")

    # -- the sockets -----------------------------------------------------------------------------------

    def written(self, socket: Socket, payload: bytes) -> Event:
        """A gateway writes one frame."""
        event: Event = _decode(payload)
        if event["type"] in ATTACHED:
            socket.session_id = event["session"]["id"]
        seq, session_id = event.get("server_event_seq"), socket.session_id
        if seq is None:
            return event
        if not session_id:
            self._world.fail(f"{event['type']} on a socket that was told of no session")
        seen = self.of(session_id)
        told = seen.told.setdefault(seq, event["event_id"])
        if told != event["event_id"]:
            self._world.fail(f"{session_id}: seq {seq} is {told} and {event['event_id']}")
        if seq not in seen.journaled:
            away = socket.gateway.service.gateway.breaker.open or seen.released or seen.behind(seq)
            if not away:
                self._world.fail(f"{session_id}: seq {seq} was sent before the store had it")
            seen.live.add(seq)
            self._world.count["sent while the store was away"] += 1
            if event["type"] == AUDIO and seq > seen.numbered:
                self._check_purged(session_id, seen, seq, event)
            seen.numbered = max(seen.numbered, seq)
        return event

    def unconfirmed(self, session_id: str) -> bool:
        """Something was sent that the store does not have (yet): a fault now may cost a gap."""
        seen = self.of(session_id)
        return any(seq not in seen.journaled for seq in seen.live)


def kind_of(body: bytes) -> str:
    """The type of a rendered event, which is its first member."""
    return body[9 : body.index(b'"', 9)].decode()


def is_structural(kind: str, body: bytes) -> bool:
    """Everything but deltas, `response.speak`, a listen without a response, and overlap decisions."""
    if kind.endswith(".delta") and not kind.startswith("response.function_call"):
        return False
    if kind in ("response.speak", "overlap.decision"):
        return False
    return kind != "response.listen" or b'"response_id"' in body
