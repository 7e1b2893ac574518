"""The ports without a server: the same `.lua` files, run by lupa's Lua 5.1 on data of this process.

For the in-process API, simulations and tests. The time is an argument (`clock`, seconds), so a simulation
owns it. Needs the package `lupa`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from lupa import lua51

from duologue.fence import Owner
from duologue.store.holdings import ScriptedHoldings
from duologue.store.journals import JournalLimits, ScriptedJournal, append_args, append_outcome
from duologue.store.memory_budget import MemoryBudget
from duologue.store.memory_commands import CommandError, MemoryCommands
from duologue.store.ports import Entry, JournalAppender, OnAppended, StoreUnavailable
from duologue.store.registrations import ScriptedRegistry
from duologue.store.scripts import SCRIPTS, Arg, Reply, Script, ScriptRunner, journal_keys
from duologue.store.secrets import ScriptedSecrets
from duologue.store.sessions import ScriptedSessions

_T = TypeVar("_T")
Defer = Callable[[Callable[[], None]], object]

_lua51: Any = lua51  # its stubs know `str` source only; scripts and values are bytes here
_FEW = 128
"""Values that are handed to Lua as arguments; more of them go through a table."""
_WRAP = b"""
local call = ...
return { call = function(...) return call(...) end }
"""


class MemoryServer(ScriptRunner):
    """One server's worth of data, and the scripts compiled for it. Not for use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.commands = MemoryCommands()
        self._clock = clock
        self._now_us = 0
        self._lua: Any = _lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._globals: Any = self._lua.globals()
        self._globals[b"redis"] = self._lua.execute(_WRAP, self._call)
        self._pack: Any = self._lua.eval(b"function(...) return {...} end")
        self._compiled: dict[bytes, Any] = {}

    def now_us(self) -> int:
        return int(self._clock() * 1_000_000)

    def close(self) -> None:
        """Break the circle through Lua that no collector sees: without it a server lives as long as the process."""
        self._globals[b"redis"] = None
        self._compiled.clear()
        self._lua.execute(b"collectgarbage()")

    def evaluate(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        """Run one script to its end, at one moment, as a server does. Raises `StoreUnavailable`."""
        function = self._compiled.get(script.sha)
        if function is None:
            function = self._compiled[script.sha] = self._lua.compile(script.source)
        self._now_us = self.now_us()
        self._globals[b"KEYS"] = self._table([key.encode() for key in keys])
        self._globals[b"ARGV"] = self._table([arg if type(arg) is bytes else _bytes(arg) for arg in args])
        try:
            reply: Reply = self._from_lua(function())
        except (lua51.LuaError, CommandError) as error:
            raise StoreUnavailable(f"{script.name}: {error}") from error
        return reply

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        return self.evaluate(script, keys, args)

    def _call(self, name: bytes, *args: Any) -> Any:
        given = [arg if type(arg) is bytes else _bytes(arg) for arg in args]
        return self._to_lua(self.commands.call(self._now_us, name.upper(), *given))

    def _table(self, values: list[Any]) -> Any:
        """A Lua table of these. Lua packs a few itself, in half the time."""
        return self._pack(*values) if len(values) <= _FEW else self._lua.table_from(values)

    def _to_lua(self, value: Any) -> Any:
        """As `redis.call` gives it: nil is false, an array is a table."""
        if value is None:
            return False
        if isinstance(value, list):
            return self._table([self._to_lua(item) for item in value])
        return value

    def _from_lua(self, value: Any) -> Any:
        """As a server answers: false is nil, numbers lose their fraction, a table ends at its first nil."""
        if type(value) is bytes:
            return value
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, (int, float)):
            return int(value)
        return [self._from_lua(value[i]) for i in range(1, len(value) + 1)]


class MemoryAppender(JournalAppender):
    """Executes at once; the outcome comes later (`defer`, by default the event loop's `call_soon`)."""

    def __init__(self, server: MemoryServer, limits: JournalLimits | None = None, defer: Defer | None = None) -> None:
        self._server = server
        self._limits = (limits or JournalLimits()).args()
        self._defer = defer

    @property
    def connected(self) -> bool:
        return True

    def submit(
        self,
        session_id: str,
        owner: Owner,
        egress: int,
        first_seq: int,
        batch: Sequence[Entry],
        on_outcome: OnAppended,
    ) -> bool:
        args = append_args(self._limits, owner, egress, first_seq, batch)
        outcome = append_outcome(self._server.evaluate(SCRIPTS["journal/append"], journal_keys(session_id), args))
        defer = self._defer or asyncio.get_running_loop().call_soon
        defer(lambda: on_outcome(outcome))
        return True


class MemoryStore:
    """Every port of one process, as `RedisStore` has them."""

    memory: MemoryBudget | None = None
    """It knows no budget."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        limits: JournalLimits | None = None,
        session_ttl_s: float = 600.0,
        defer: Defer | None = None,
        server: MemoryServer | None = None,
    ) -> None:
        self.server = server or MemoryServer(clock)
        self.sessions = ScriptedSessions(self.server, ttl_s=session_ttl_s)
        self.journal = ScriptedJournal(self.server, limits)
        self.registry = ScriptedRegistry(self.server)
        self.secrets = ScriptedSecrets(self.server)
        self.holdings = ScriptedHoldings(self.server, ttl_s=session_ttl_s)
        self.appender = MemoryAppender(self.server, limits, defer)

    async def look_at_memory(self, journals: int) -> None:
        """Nothing to look at."""

    async def open(self) -> None:
        """Nothing to reach."""

    async def close(self) -> None:
        """Nothing to give back; the data goes with the object."""


def run_now(call: Coroutine[Any, Any, _T]) -> _T:
    """The result of a call on this adapter, without an event loop: none of its operations ever waits."""
    try:
        call.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    call.close()
    raise RuntimeError("the call waits for something; only calls on the in-memory store run at once")


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return b"%d" % int(value)
