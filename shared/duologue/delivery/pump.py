"""Drives one `Egress`: batches to the journal, outcomes back, frames to the sink, acknowledgements after them.

No task, no lock: everything happens inside `put`, `drained`, `tick` and the journal's callback. While any pump
waits for something its process calls `Pumps.tick` every 50 ms or so; `Pumps.needed` tells when that begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

from duologue.bus.messages import Delivered, Delivery
from duologue.delivery.egress import Batch, Egress, Frame, Put
from duologue.fence import Owner
from duologue.store.ports import Appended, AppendOutcome, JournalAppender, OnAppended, Unknown

_UNKNOWN = Unknown()


class Sink(ABC):
    """Where the frames go. Called from the event loop; must not block or await."""

    @abstractmethod
    def room(self) -> bool:
        """Whether the socket's write buffer is low enough to give out more numbers (a detached one: True)."""

    @abstractmethod
    def write(self, frames: Sequence[Frame]) -> None:
        """Write them now, in order. The acknowledgement follows when this returns."""

    @abstractmethod
    def delivered(self, ack: Delivered) -> None:
        """Tell the shard."""

    @abstractmethod
    def stopped(self, why: str) -> None:
        """Called once: replaced (another egress has claimed), gone (released), conflict, overflow."""

    @abstractmethod
    def owner_replaced(self, owner: Owner) -> None:
        """The store knows a higher owner: look it up. `Pump.owner_changed` goes on."""


class Pumps:
    """The pumps of one process that wait for time to pass, and what all of its pumps count together.

    `needed` is called when the first of them begins to wait."""

    def __init__(self) -> None:
        self._waiting: dict[Pump, None] = {}
        self.needed: Callable[[], None] | None = None
        self.purged = 0
        """Audio events removed before they had a number."""
        self.holes = 0
        """Sessions whose journal has lost entries: the store was away for longer than the bound."""

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, pump: Pump, waits: bool) -> None:
        if waits:
            if not self._waiting and self.needed is not None:
                self.needed()
            self._waiting[pump] = None
        else:
            self._waiting.pop(pump, None)

    @property
    def unnumbered(self) -> int:
        """Events that have no number yet. A pump that has any waits."""
        return sum(pump.egress.queued_events for pump in self._waiting)

    @property
    def kept_bytes(self) -> int:
        """Entries that were sent and are kept for the journal."""
        return sum(pump.egress.kept_bytes for pump in self._waiting)

    def tick(self) -> None:
        for pump in list(self._waiting):
            pump.run()


class Pump:
    """One egress at work. `clock`: monotonic seconds."""

    def __init__(
        self,
        egress: Egress,
        appender: JournalAppender,
        sink: Sink,
        pumps: Pumps,
        clock: Callable[[], float],
    ) -> None:
        self.egress = egress
        self._appender = appender
        self._sink = sink
        self._pumps = pumps
        self._clock = clock
        self._closed = False
        self._running = False
        self._again = False
        self._barred: Owner | None = None
        self._holed = False
        self._last_words: deque[Batch] = deque()

    def put(self, owner: Owner, events: Sequence[Delivery], bodies: Sequence[bytes]) -> Put:
        """Events from the shard. `OVERFLOW` also stops the egress: the session's limits were not kept."""
        result = self.egress.put(owner, events, bodies)
        if result is Put.OVERFLOW:
            self._stop("overflow")
        elif result is Put.TAKEN:
            self.run()
        return result

    def invalidate(self, owner: Owner, response_id: str, through_epoch: int) -> None:
        if gone := self.egress.invalidate(owner, response_id, through_epoch):
            self._pumps.purged += gone
            self.run()

    def owner_changed(self, owner: Owner) -> None:
        self.egress.owner_changed(owner)
        self.run()

    def drained(self) -> None:
        """The socket has room again."""
        self.run()

    def close(self) -> None:
        """Detached or over: what comes back from the journal is nobody's concern now. What was sent and not journaled
        is submitted, once: the store may be back, and whoever resumes needs it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._pumps.wait(self, False)
        self._last_words.extend(self.egress.last_words())
        if not self.egress.flying:
            self._say_last()

    def _say_last(self) -> None:
        """The next of the last words, now that those before it are in the journal: a stream that has a later event
        takes no earlier one, from nobody."""
        if self._last_words:
            self._submit(self._last_words.popleft(), self._on_outcome)

    def run(self) -> None:
        """Do everything that can be done now."""
        if self._closed:
            return
        if self._running:  # a sink that answers by calling back in: once more, when this round is done
            self._again = True
            return
        self._running = True
        try:
            again = True
            while again and not self._closed:
                self._again = False
                self._run()
                again = self._again
        finally:
            self._running = False
        if not self._closed:
            self._pumps.wait(self, self.egress.busy)

    def _run(self) -> None:
        egress, sink, now = self.egress, self._sink, self._clock()
        room = sink.room()
        while frames := egress.live(now, room):
            if egress.holes and not self._holed:
                self._holed = True
                self._pumps.holes += 1
            sink.write(frames)
            if self._closed:
                return
            room = sink.room()
        batch = egress.next_batch(now, room)
        if batch is not None and not self._submit(batch, self._on_outcome):
            egress.on_outcome(_UNKNOWN, now)
        ack = egress.take_ack()
        if ack is not None:
            sink.delivered(ack)

    def _submit(self, batch: Batch, on_outcome: OnAppended) -> bool:
        egress = self.egress
        return self._appender.submit(
            egress.session_id, batch.owner, batch.egress, batch.first_seq, batch.entries, on_outcome
        )

    def _on_outcome(self, outcome: AppendOutcome) -> None:
        if self._closed:
            if isinstance(outcome, Appended):
                self._say_last()
            return
        frames = self.egress.on_outcome(outcome, self._clock())
        if frames:
            self._sink.write(frames)
        if self._closed:
            return
        if self.egress.stopped:
            self._stop(self.egress.stopped)
            return
        barred = self.egress.barred
        if barred is not None and barred != self._barred:
            self._barred = barred
            self._sink.owner_replaced(barred)
        if not isinstance(outcome, Unknown):
            self.run()
        else:  # repeated by the tick: a store that refuses every batch must not be asked in a loop
            self._pumps.wait(self, True)

    def _stop(self, why: str) -> None:
        if not self._closed:
            self.close()
            self._sink.stopped(why)
