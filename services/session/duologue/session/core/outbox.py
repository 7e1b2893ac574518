"""DuplexOutputBuffer: rendered events from their emission until the egress has acknowledged them. SANS-I/O.

Rule 1. Output commit: a structural event waits in `held`, with what is behind it, until the checkpoint that
        contains its cause is confirmed; streaming events leave at once if nothing is held.
Rule 2. At most one checkpoint is outstanding; what comes meanwhile shares the next one.
Rule 3. Everything not acknowledged counts, handed over or not. Errors and `response.done` have a reserve,
        the terminal event has a slot of its own.
Rule 4. If a checkpoint stays away longer than the journal deadline the breaker lets structural events go
        until one is confirmed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from duologue.fence import DeliveryId
from duologue.session.core.effects import Deliver
from duologue.session.core.limits import SessionLimits

MAX_KEPT_BYTES: Final = 256 * 1024
"""More than this of events that nobody has acknowledged, and a checkpoint keeps only the structural ones."""


class Entry(msgspec.Struct, array_like=True, gc=False):
    """One rendered event. `through_ms`: how much audio of `media_of` was generated up to and with it."""

    n: int
    body: bytes
    structural: bool
    media_of: str = ""
    epoch: int = 0
    through_ms: float = 0.0
    close_code: int = 0
    close_reason: str = ""
    of: int = 0
    """The owner that made it, where that is one before us; 0: ourselves."""

    def deliver(self) -> Deliver:
        return Deliver(self.n, self.body, self.media_of, self.epoch, self.close_code, self.close_reason, self.of)


class DuplexOutputBuffer(msgspec.Struct):
    n: int = 0
    sent: list[Entry] = []
    held: list[Entry] = []
    size_bytes: int = 0
    checkpoint: int = 0
    """The number of the last checkpoint that was asked for."""
    outstanding: int = 0
    """The one that is not confirmed yet; 0: none."""
    outstanding_through: int = 0
    """The last event whose cause it contains."""
    saved_at: float = 0.0
    breaker: bool = False
    dirty: bool = False
    """Something changed that no checkpoint contains."""

    @property
    def events(self) -> int:
        return len(self.sent) + len(self.held)

    def fits(self, size: int, reserved: bool, limits: SessionLimits) -> bool:
        size_bytes, events = self.size_bytes + size, len(self.sent) + len(self.held)
        if size_bytes <= limits.max_output_bytes and events < limits.max_output_events:
            return True
        return (
            reserved
            and size_bytes <= limits.max_output_bytes + limits.reserve_output_bytes
            and events < limits.max_output_events + limits.reserve_output_events
        )

    def crowded(self, limits: SessionLimits) -> bool:
        """More than half of what it may hold is not acknowledged."""
        return self.size_bytes > limits.max_output_bytes // 2 or self.events > limits.max_output_events // 2

    def put(self, entry: Entry) -> Deliver | None:
        """Take one event; the order to deliver it, if it may leave at once."""
        self.size_bytes += len(entry.body)
        if self.held or (entry.structural and not self.breaker):
            self.held.append(entry)
            return None
        self.sent.append(entry)
        return entry.deliver()

    def release(self, through: int) -> list[Deliver]:
        """Let go what is held up to `through`, and streaming events that stand at the head then."""
        count = 0
        for entry in self.held:
            if entry.n > through and entry.structural and not self.breaker:
                break
            count += 1
        freed, self.held = self.held[:count], self.held[count:]
        self.sent += freed
        return [entry.deliver() for entry in freed]

    def confirm(self, number: int) -> list[Deliver]:
        """A checkpoint is confirmed. Never fenced: durable is durable."""
        if not self.outstanding or number < self.outstanding:
            return []
        self.outstanding = 0
        self.breaker = False
        return self.release(self.outstanding_through)

    def trip(self) -> list[Deliver]:
        """The checkpoint stays away: structural events no longer wait for it."""
        self.breaker = True
        return self.release(self.n)

    def acknowledge(self, through: int, of: int = 0) -> list[Entry]:
        """Forget what the egress has written; returns it. `of`: the owner that `through` counts under; 0: ourselves."""
        count = size = 0
        for entry in self.sent:
            if entry.of == of:
                if entry.n > through:
                    break
            elif of and (not entry.of or entry.of > of):
                break  # made after all that is acknowledged
            count += 1
            size += len(entry.body)
        if not count:
            return []
        gone = self.sent[:count]
        del self.sent[:count]
        self.size_bytes -= size
        return gone

    def purge(self, response_id: str) -> int:
        """Drop un-acknowledged audio of a response; returns how many events."""
        before = self.events
        for name in ("sent", "held"):
            kept: list[Entry] = []
            for entry in getattr(self, name):
                if entry.media_of == response_id:
                    self.size_bytes -= len(entry.body)
                else:
                    kept.append(entry)
            setattr(self, name, kept)
        return before - self.events

    def kept(self) -> DuplexOutputBuffer:
        """What a checkpoint keeps of it: all that an heir has to deliver. Of a client that is far behind it is only
        what is structural: sound that it would hear much later is not written again and again."""
        if self.size_bytes <= MAX_KEPT_BYTES:
            return self
        return msgspec.structs.replace(
            self,
            sent=[entry for entry in self.sent if entry.structural],
            held=[entry for entry in self.held if entry.structural],
        )

    def inherit(self, before: int) -> None:
        """For a new owner: all of it was made by the owner `before`, and its causes are in the checkpoint. The ids
        stand: an egress that has them numbered knows them again. Own numbers go on above."""
        self.sent, self.held = [*self.sent, *self.held], []
        for entry in self.sent:
            entry.of = entry.of or before
        self.size_bytes = sum(len(entry.body) for entry in self.sent)
        self.outstanding, self.breaker = 0, False

    def journaled(self, through: DeliveryId) -> None:
        """For a new owner, before anything else: what is in the journal need not be told. The end of the session is
        all the same: whoever attaches has to know of it, and its egress knows that it is out."""
        self.sent = [e for e in self.sent if DeliveryId(e.of, e.n) > through or e.close_code]
        self.size_bytes = sum(len(entry.body) for entry in self.sent)
