"""A session that lives here: its runner, its attachment, its stages, put together and taken apart.

Rule 1. It ends once, in `finish` of its runner, and everything it holds is let go there.
Rule 2. A session that another shard owns now ends here without touching what the store holds of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from duologue.bus.link import Link
from duologue.bus.messages import Attach, CloseStages, Covered, OwnerChanged
from duologue.fence import DeliveryId, Owner, StageFence
from duologue.session.accounts import Parties
from duologue.session.attachment import Attachment
from duologue.session.checkpoints import Checkpointer
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.core.engine_session import Totals
from duologue.session.detached import YIELD_S
from duologue.session.inheriting import Inherited
from duologue.session.input_tape import InputTape
from duologue.session.mailbox import Mailbox
from duologue.session.opening import Opened, Opening, StoredExtra
from duologue.session.output import SessionOutput
from duologue.session.refusals import INTERNAL
from duologue.session.runner import DuplexSessionRunner
from duologue.session.surroundings import Surroundings
from duologue.store.ports import Refused

Over = Callable[["Resident", str], None]


class Resident:
    """See the module. `over` is called once, with the reason, when nothing is left to do here."""

    __slots__ = (
        "_around",
        "_before",
        "_greeting",
        "_inherited",
        "_over",
        "_parked",
        "attachment",
        "pipeline",
        "refusal",
        "runner",
        "session_id",
        "touched_at",
        "who",
    )

    def __init__(self, opened: Opened | Inherited, around: Surroundings, over: Over) -> None:
        opening, owner = opened.opening if isinstance(opened, Opened) else opened, opened.owner
        self.session_id = opening.session_id
        self.pipeline = opening.pipeline.name
        self.who = _parties(opened)
        self._before = opened.machine.totals
        self._inherited = opened if isinstance(opened, Inherited) else None
        """Set until it is saved under our name."""
        self._parked: tuple[Link, Attach] | None = None
        """The attachment that waits for that."""
        self.refusal: Refused | None = None
        """Set when another shard has the session."""
        self.touched_at = asyncio.get_running_loop().time()
        self._around = around
        self._over = over
        self._greeting = b"" if isinstance(opened, Inherited) else opened.machine.session_object()
        tape = None
        if opening.pipeline.spec.rebuild == "input":
            tape = InputTape(
                around.store,
                around.background,
                self.session_id,
                owner,
                pipeline=opening.pipeline.spec,
                unit_ms=opening.pipeline.plugin.traits.unit_ms,
                tallies=around.tallies,
            )
        checkpointer = Checkpointer(
            around.store,
            around.background,
            self.session_id,
            owner,
            confirmed=self._confirmed,
            refused=self.refused,
            tallies=around.tallies,
            write_heard=None if tape is None else tape.flush,
        )
        binding = around.hub.bind(self.session_id, opening.pipeline.spec)
        recorder = None
        if around.recorder is not None:
            recorder = around.recorder.open(self.session_id, opening.described(owner.number))
        self.runner = DuplexSessionRunner(
            self.session_id,
            owner,
            opening.dialect,
            opened.machine,
            output=SessionOutput(owner.number, around.tallies),
            binding=binding,
            checkpointer=checkpointer,
            offload=around.offload,
            detector=around.detector,
            ended=self._ended,
            tallies=around.tallies,
            recorder=recorder,
            tape=tape,
            mailbox=Mailbox(around.max_facts),
            clockwork=around.clockwork,
        )
        binding.post = self.runner.post
        if tape is not None:
            tape.post = self.runner.post
        link = opening.link if isinstance(opening, Opening) else None
        self.attachment = Attachment(self.runner, link, around.make_egress, self.refused)
        self.attachment.remote = opened.opening.message.remote if isinstance(opened, Opened) else ""

    @property
    def totals_here(self) -> Totals:
        """What the session came to since it is here."""
        return self.runner.machine.totals.since(self._before)

    def start(self, opened: Opened) -> None:
        """Perform what opening asked for, and tell the gateway that the session is here."""
        self.runner.start(opened.effects)
        self.attachment.opened(self._greeting)

    def take_up(self, inherited: Inherited) -> None:
        """Go on with a session of another shard. Nothing of it is told before it is saved under our name."""
        session_id, number = self.session_id, inherited.owner.number
        for worker in self._around.hub.workers:
            if worker.link is not None:  # wherever the owner before had it; what is opened next is younger
                worker.link.send(CloseStages(session_id, StageFence(number)))
        self.runner.start(inherited.effects, inherited.machine.time)
        if self.runner.machine.closed:  # its last event is all that is left of it, and was saved with it
            self._saved()

    def _saved(self) -> None:
        """What is inherited is saved under our name: whoever is attached may be told."""
        inherited, self._inherited = self._inherited, None
        if inherited is None:
            return
        record = inherited.found.record
        self.attachment.inherited(inherited.head, record.generation, YIELD_S if record.gateway else 0.0)
        if self.runner.machine.detached_since is None:
            self.runner.post(facts.Detached(record.generation))
        if self._parked is not None:
            self.attachment.attach(*self._parked)
            self._parked = None
        elif not inherited.saved and not record.gateway:  # its gateway has given the open up
            self.runner.post(facts.CloseRequested("open_abandoned"))

    def attach(self, link: Link, message: Attach) -> None:
        """A gateway holds the attachment of this generation now."""
        if self._inherited is None:
            self.attachment.attach(link, message)
        elif self._parked is None or self._parked[1].generation <= message.generation:
            self._parked = link, message

    def gateway_lost(self, link: Link) -> None:
        if self._parked is not None and self._parked[0] is link:
            self._parked = None
        self.attachment.gateway_lost(link, YIELD_S)

    def _confirmed(self, order: orders.Checkpoint) -> None:
        self.touched_at = asyncio.get_running_loop().time()
        self._saved()
        self.runner.post(facts.Covered(order.number))
        owner = self.runner.owner
        self.attachment.tell(Covered(self.session_id, owner, order.applied, DeliveryId(owner.number, order.made)))

    def refused(self, refusal: Refused) -> None:
        """The store does not take us for this session's owner."""
        if refusal.reason == "gone":
            # Nobody else has it: its keys were released under us. The client has to be told.
            self.runner.post(facts.CloseRequested("session_gone", INTERNAL))
            return
        self.refusal = refusal
        self.runner.closing = self.runner.closing or "owner_changed"
        self.runner.finish()

    # -- handed over -----------------------------------------------------------------------------------

    @property
    def movable(self) -> bool:
        """Nothing is being said, and no attachment waits for an answer."""
        return self._inherited is None and not self.runner.machine.responding and not self.attachment.attaching

    def hold(self) -> orders.Checkpoint:
        """Stand still while the store is told of the heir."""
        self.runner.checkpointer.stop()
        return self.runner.hold()

    def go_on(self) -> None:
        self.runner.go_on()
        self.runner.post(facts.CheckpointWanted())

    def handed_over(self, owner: Owner) -> None:
        """The store has it for another shard: tell the gateway, and let go of everything here."""
        self.refusal = Refused("owner", owner)
        self.runner.closing = self.runner.closing or "handed_over"
        self.runner.finish()

    def _ended(self, reason: str) -> None:
        if self.refusal is not None:
            self.attachment.tell(OwnerChanged(self.session_id, self.refusal.owner))
        self.attachment.stop()
        machine = self.runner.machine
        self._around.tallies.ended(machine, self.pipeline)
        self._around.tallies.came_to(self.pipeline, self.totals_here)
        if self.refusal is None:
            remote = self.attachment.remote
            self._around.accounts.close(self.who, machine.totals, machine.used, reason, machine.time, remote)
        self._around.hub.release(self.runner.binding)
        if self.refusal is None:
            self._around.cleanup.release(self.session_id, self.runner.owner)
        self._over(self, reason)


def _parties(opened: Opened | Inherited) -> Parties:
    """Who it belongs to, and what it is."""
    if isinstance(opened, Opened):
        opening = opened.opening
        principal, started_at, dialect = opening.message.principal, opening.opened_unix_s, opening.dialect
    else:
        record = opened.found.record
        beginning = msgspec.msgpack.decode(record.extra, type=StoredExtra).beginning
        started_at = 0.0 if beginning is None else beginning.opened_unix_s
        principal, dialect = record.principal, record.dialect
    pipeline = opened.opening.pipeline if isinstance(opened, Opened) else opened.pipeline
    session_id = opened.opening.session_id if isinstance(opened, Opened) else opened.session_id
    return Parties(
        session_id=session_id, principal=principal, dialect=dialect, model=pipeline.name, started_at=started_at
    )
