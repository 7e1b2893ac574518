"""A session that lives here: its runner, its attachment, its stages, put together and taken apart.

Rule 1. It ends once, in `finish` of its runner, and everything it holds is let go there.
Rule 2. A session that another shard owns now ends here without touching what the store holds of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duologue.bus.messages import Covered, OwnerChanged
from duologue.session.attachment import Attachment
from duologue.session.checkpoints import Checkpointer
from duologue.session.core import commands as facts
from duologue.session.core import effects as orders
from duologue.session.input_tape import InputTape
from duologue.session.mailbox import Mailbox
from duologue.session.opening import Opened
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
        "_greeting",
        "_over",
        "attachment",
        "pipeline",
        "refusal",
        "runner",
        "session_id",
        "touched_at",
    )

    def __init__(self, opened: Opened, around: Surroundings, over: Over) -> None:
        opening, owner = opened.opening, opened.owner
        self.session_id = opening.session_id
        self.pipeline = opening.pipeline.name
        self.refusal: Refused | None = None
        """Set when another shard has the session."""
        self.touched_at = asyncio.get_running_loop().time()
        self._around = around
        self._over = over
        self._greeting = opened.machine.session_object()
        checkpointer = Checkpointer(
            around.store,
            around.background,
            self.session_id,
            owner,
            confirmed=self._confirmed,
            refused=self.refused,
            tallies=around.tallies,
        )
        binding = around.hub.bind(self.session_id, opening.pipeline.spec)
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
        self.attachment = Attachment(self.runner, opening.link, around.make_egress, self.refused)

    def start(self, opened: Opened) -> None:
        """Perform what opening asked for, and tell the gateway that the session is here."""
        self.runner.start(opened.effects)
        self.attachment.opened(self._greeting)

    def _confirmed(self, order: orders.Checkpoint) -> None:
        self.touched_at = asyncio.get_running_loop().time()
        self.runner.post(facts.Covered(order.number))
        self.attachment.tell(Covered(self.session_id, self.runner.owner, order.applied))

    def refused(self, refusal: Refused) -> None:
        """The store does not take us for this session's owner."""
        if refusal.reason == "gone":
            # Nobody else has it: its keys were released under us. The client has to be told.
            self.runner.post(facts.CloseRequested("session_gone", INTERNAL))
            return
        self.refusal = refusal
        self.runner.closing = self.runner.closing or "owner_changed"
        self.runner.finish()

    def _ended(self, reason: str) -> None:
        if self.refusal is not None:
            self.attachment.tell(OwnerChanged(self.session_id, self.refusal.owner))
        self.attachment.stop()
        self._around.tallies.ended(self.runner.machine, self.pipeline)
        self._around.hub.release(self.runner.binding)
        if self.refusal is None:
            self._around.cleanup.release(self.session_id, self.runner.owner)
        self._over(self, reason)
