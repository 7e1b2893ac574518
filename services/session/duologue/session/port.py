"""What the shell asks of a session core: `DuplexSessionMachine` from outside, so that tests may drive a fake.

Rule 1. Everything here is synchronous and total: a machine never raises for what a client or a worker did.
Rule 2. The shell reads these attributes between two calls of `handle`, never during one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from duologue.fence import CommandNo
from duologue.model.outputs import Usage
from duologue.protocol.duplex import DuplexCommand
from duologue.session.core.commands import SessionCommand
from duologue.session.core.effects import Checkpoint, SessionEffect
from duologue.session.core.engine_session import Totals
from duologue.session.core.observations import Observations


class SessionMachine(Protocol):
    """One session. Times are session time, seconds from 0 at open."""

    def handle(self, command: SessionCommand, now: float) -> Sequence[SessionEffect]:
        """One fact in, what it wants done out, to be performed in order."""
        ...

    def next_deadline(self) -> float | None:
        """Session time at which it wants a `Tick`, or None."""
        ...

    def last_words(self) -> Checkpoint:
        """The checkpoint that the session is handed over with."""
        ...

    def session_object(self) -> bytes:
        """The session as its client's dialect shows it, JSON."""
        ...

    def items_for_gap(self) -> bytes:
        """The conversation (id, role, text) for a client that came back past a hole, JSON array."""
        ...

    def input_cost(self, command: DuplexCommand) -> int:
        """Bytes that this command would add to `pending_input_bytes`; 0 for one that buffers nothing."""
        ...

    @property
    def pending_input_bytes(self) -> int:
        """Input taken and not yet consumed by a stage."""
        ...

    @property
    def queued_commits(self) -> int:
        """Commits that wait for their turn in the ordered input."""
        ...

    @property
    def input_waits(self) -> bool:
        """Commands were taken that `applied` does not tell of yet: they wait for their turn."""
        ...

    @property
    def responding(self) -> bool:
        """A response is open."""
        ...

    @property
    def made(self) -> int:
        """The number of the last event that was made."""
        ...

    @property
    def gap(self) -> bool:
        """What was told to the client is not all known: it has to be told so when it comes next."""
        ...

    @property
    def time(self) -> float:
        """Session time of the last fact."""
        ...

    @property
    def detached_since(self) -> float | None:
        """Session time at which its client went, or None."""
        ...

    @property
    def applied(self) -> CommandNo:
        """The newest client command that was applied."""
        ...

    @property
    def covered(self) -> CommandNo:
        """The newest client command that is in a confirmed checkpoint."""
        ...

    @property
    def last_client_event_id(self) -> str | None:
        """As covered."""
        ...

    @property
    def input_audio_end_ms(self) -> int:
        """As covered."""
        ...

    @property
    def stale(self) -> Mapping[str, int]:
        """How much came too late to mean anything, by kind."""
        ...

    @property
    def observed(self) -> Observations:
        """What it measures of itself. Whoever takes the latencies clears them."""
        ...

    @property
    def story(self) -> Sequence[Mapping[str, object]]:
        """The last facts with the effects they had, without content: for an operator, and the log of a fault."""
        ...

    @property
    def totals(self) -> Totals:
        """What the session came to so far, over all its owners."""
        ...

    @property
    def used(self) -> Usage | None:
        """What the model counted, over all owners; None: it counts nothing."""
        ...

    @property
    def closed(self) -> bool:
        """The terminal event is out; nothing more will come."""
        ...
