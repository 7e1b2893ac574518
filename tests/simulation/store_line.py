"""The store of a simulated world: one server that runs the real scripts, and each process's line to it.

Rule 1. A call that was sent is carried out even if its caller is cancelled or dies: the server does not know.
Rule 2. What goes wrong is drawn here: everything late, a reply lost, a call carried out long after its caller
        gave up. The scripts themselves are never touched.
Rule 3. The witness hears of every append and every checkpoint at the moment at which the server has it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duologue.fence import Owner
from duologue.store.holdings import ScriptedHoldings
from duologue.store.journals import JournalLimits, ScriptedJournal, append_args, append_outcome
from duologue.store.memory import MemoryServer
from duologue.store.ports import (
    AppendOutcome,
    Entry,
    JournalAppender,
    OnAppended,
    StoreUnavailable,
    Unknown,
)
from duologue.store.registrations import ScriptedRegistry
from duologue.store.scripts import SCRIPTS, Arg, Reply, Script, ScriptRunner, journal_keys
from duologue.store.secrets import ScriptedSecrets
from duologue.store.sessions import ScriptedSessions

if TYPE_CHECKING:
    from simulation.nodes import Node
    from simulation.world import World

TIMEOUT_S = 0.6
"""How long a process waits for an answer."""
LATENCY_S = (0.0002, 0.002)
NOBODY = Context()
"""The server's own: what it does, no process of the world does, and none that stands still holds up."""


class Depot:
    """The server, and what is wrong with it at the moment."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = MemoryServer(world.machine.time)
        self.stalled_until = 0.0
        self.lossy_until = 0.0
        self.late_until = 0.0
        self.no_checkpoints_of: set[Node] = set()
        """Processes whose checkpoints do not get here."""

    @property
    def troubled(self) -> bool:
        """Something is wrong, or was until just now."""
        return self.world.now < max(self.stalled_until, self.lossy_until, self.late_until) + 1.0

    def latency(self) -> float:
        return self.world.random.uniform(*LATENCY_S)

    def due(self) -> float:
        """When a call that is sent now arrives."""
        return max(self.world.now, self.stalled_until) + self.latency()

    def loses(self) -> bool:
        return self.world.now < self.lossy_until and self.world.random.random() < 0.3

    def delays(self) -> bool:
        return self.world.now < self.late_until and self.world.random.random() < 0.3

    def execute(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        """Carry a call out. Raises `StoreUnavailable` for a script that fails: a bug."""
        reply = self.server.evaluate(script, keys, args)
        if script.name == "session/checkpoint" and reply[0] == b"ok":
            self.world.witness.checkpointed(keys[0][3:-1], int(args[1]), args[4])
        elif script.name == "journal/release":
            self.world.witness.of(keys[0][4:-1]).released = True
        elif script.name == "journal/fence" and reply[0] == b"ok":
            self.world.witness.fenced(keys[0][4:-1], int(args[1]))
        return reply


class Line(ScriptRunner):
    """A process's calls to the server, each on its own way."""

    def __init__(self, depot: Depot, node: Node) -> None:
        self._depot = depot
        self._node = node

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        depot, loop = self._depot, asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()
        session_id = keys[0][3:-1] if script.name == "session/checkpoint" else ""
        if session_id:
            depot.world.witness.checkpoint_asked(session_id)
        elif script.name == "session/record":
            depot.world.witness.recording(keys[0][3:-1])
        if self._node.alive and not (session_id and self._node in depot.no_checkpoints_of):
            due = depot.due()
            if depot.delays():
                depot.world.count["late execution"] += 1
                loop.call_at(
                    due + depot.world.random.uniform(0.2, 1.0),
                    self._carry_out,
                    script,
                    keys,
                    args,
                    None,
                    context=NOBODY,
                )
            elif depot.loses():
                depot.world.count["lost reply"] += 1
                loop.call_at(due, self._carry_out, script, keys, args, None, context=NOBODY)
            else:
                loop.call_at(due, self._carry_out, script, keys, args, answer, context=NOBODY)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await answer
        except TimeoutError:
            raise StoreUnavailable(f"{script.name}: no answer") from None
        if session_id:
            depot.world.witness.checkpoint_answered(session_id)
        return reply

    def _carry_out(
        self, script: Script, keys: Sequence[str], args: Sequence[Arg], answer: asyncio.Future[Reply] | None
    ) -> None:
        depot = self._depot
        try:
            reply = depot.execute(script, keys, args)
        except StoreUnavailable as error:
            return depot.world.fail(f"a script failed: {error}")
        if answer is not None:
            asyncio.get_running_loop().call_later(depot.latency(), self._answer, answer, reply)
        return None

    def _answer(self, answer: asyncio.Future[Reply], reply: Reply) -> None:
        if self._node.alive and not answer.done():
            answer.set_result(reply)


@dataclass(slots=True)
class _Out:
    """One batch on its way."""

    session_id: str
    args: list[Arg]
    first_seq: int
    entries: Sequence[Entry]
    on_outcome: OnAppended
    executed: bool = False


class Appender(JournalAppender):
    """A process's journal connection: first in, first out; when it breaks, what is out is unknown."""

    def __init__(self, depot: Depot, node: Node, limits: JournalLimits) -> None:
        self._depot = depot
        self._node = node
        self._limits = limits.args()
        self._out: deque[_Out] = deque()
        self._last_due = 0.0
        self._down_until = 0.0

    @property
    def connected(self) -> bool:
        return self._depot.world.now >= self._down_until

    def outstanding(self, session_id: str) -> bool:
        """Whether a batch of this session is out."""
        return any(out.session_id == session_id for out in self._out)

    def submit(
        self,
        session_id: str,
        owner: Owner,
        egress: int,
        first_seq: int,
        batch: Sequence[Entry],
        on_outcome: OnAppended,
    ) -> bool:
        world = self._depot.world
        if not self._node.alive:
            return False
        entries = list(batch)
        world.witness.submitted(session_id, first_seq, entries)  # it has its numbers, connected or not
        if not self.connected:
            return False
        args = append_args(self._limits, owner, egress, first_seq, entries)
        out = _Out(session_id, args, first_seq, entries, on_outcome)
        self._out.append(out)
        self._last_due = due = max(self._last_due, self._depot.due())
        loop = world.loop
        loop.call_at(due, self._arrive, out, context=NOBODY)
        loop.call_later(TIMEOUT_S, self._expect, out)
        return True

    def _arrive(self, out: _Out) -> None:
        world = self._depot.world
        if out not in self._out:
            return  # the connection broke before it got there
        if self._depot.delays():
            world.count["late execution"] += 1
            world.loop.call_later(world.random.uniform(0.02, 0.4), self._execute, out)
            return self.cut()
        outcome = self._execute(out)
        if self._depot.loses():
            world.count["lost reply"] += 1
            return self.cut()
        world.loop.call_later(self._depot.latency(), self._answered, out, outcome)
        return None

    def _execute(self, out: _Out) -> AppendOutcome:
        world = self._depot.world
        out.executed = True
        outcome = append_outcome(
            self._depot.server.evaluate(SCRIPTS["journal/append"], journal_keys(out.session_id), out.args)
        )
        world.witness.appended(out.session_id, out.args, out.first_seq, out.entries, outcome)
        return outcome

    def _answered(self, out: _Out, outcome: AppendOutcome) -> None:
        if out in self._out:
            self._out.remove(out)
            self._tell(out, outcome)

    def _expect(self, out: _Out) -> None:
        """Nothing came back for too long."""
        if out in self._out:
            self.cut()

    def cut(self) -> None:
        """The connection breaks. Of what is out and has not arrived, some arrives all the same."""
        world = self._depot.world
        self._down_until = world.now + world.random.uniform(0.02, 0.15)
        out, self._out = self._out, deque()
        for one in out:
            if not one.executed and world.random.random() < 0.3:
                world.count["late execution"] += 1
                world.loop.call_later(world.random.uniform(0.01, 0.3), self._execute, one, context=NOBODY)
            world.loop.call_soon(self._tell, one, Unknown())

    def _tell(self, out: _Out, outcome: AppendOutcome) -> None:
        if self._node.held is not None:
            with self._node.here():
                self._depot.world.loop.call_soon(self._tell, out, outcome)  # heard when it goes on
        elif self._node.alive:
            with self._node.here():
                out.on_outcome(outcome)


class Stores:
    """The ports of one process, on its own line."""

    memory: None = None
    """No world fills its store."""

    def __init__(self, depot: Depot, node: Node) -> None:
        limits = JournalLimits()
        line = Line(depot, node)
        self.sessions = ScriptedSessions(line)
        self.journal = ScriptedJournal(line, limits)
        self.registry = ScriptedRegistry(line)
        self.secrets = ScriptedSecrets(line)
        self.holdings = ScriptedHoldings(line)
        self.appender = Appender(depot, node, limits)

    async def look_at_memory(self, journals: int) -> None:
        """Nothing to look at."""

    async def open(self) -> None:
        """The line is there."""

    async def close(self) -> None:
        """Nothing to give back."""
