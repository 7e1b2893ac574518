"""The hot path into the journal: one connection per process, written once per turn of the event loop.

Rule 1. Replies come in the order of the commands, so one FIFO of callbacks is all the bookkeeping there is:
        no future, no task and no lock per batch.
Rule 2. Nothing that was written is ever cancelled. When the connection goes, every batch that was out is
        `Unknown`: its egress repeats it, with the numbers it has.
Rule 3. Bounded: at most `MAX_BATCHES` and `MAX_BYTES` are out; beyond that `submit` takes nothing.
Rule 4. A connection on which nothing came back for `timeout_s` while something was due is dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from duologue.fence import Owner
from duologue.store.journals import JournalLimits, append_args, append_outcome
from duologue.store.ports import (
    Appended,
    AppendOutcome,
    Entry,
    JournalAppender,
    OnAppended,
    StoreUnavailable,
    Unknown,
)
from duologue.store.redis_address import RedisAddress, parse_address
from duologue.store.scripts import SCRIPTS
from duologue.store.stats import StoreStats

MAX_BATCHES = 4096
MAX_BYTES = 64 * 1024 * 1024

_BACKOFF_FIRST_S = 0.02
_BACKOFF_MOST_S = 1.0
_SCRIPT = SCRIPTS["journal/append"]
_UNKNOWN = Unknown()
_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command


class JournalWriter(JournalAppender):
    """Appends batches at `url`. `open` once, from inside the event loop that uses it."""

    def __init__(
        self,
        url: str,
        limits: JournalLimits | None = None,
        *,
        timeout_s: float = 2.0,
        stats: StoreStats | None = None,
    ) -> None:
        self.stats = stats or StoreStats()
        self._address: RedisAddress = parse_address(url)
        self._limits = (limits or JournalLimits()).args()
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self.reconnects = 0

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def outstanding(self) -> int:
        """Batches written and not answered."""
        return len(self._connection.waiting) if self._connection is not None else 0

    async def open(self) -> None:
        """Connect and load the script. Raises `StoreUnavailable`; after it, lost connections come back."""
        await self._connect()
        self._keeper = asyncio.create_task(self._keep(), name="journal-writer")

    async def close(self) -> None:
        """Stop reconnecting and close. Batches that are out end `Unknown`."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def limit(self, max_bytes: int) -> None:
        """The most that a journal may hold, from the next batch on."""
        ttl_ms, _, age_ms = self._limits
        self._limits = (ttl_ms, max_bytes, age_ms)

    def submit(
        self,
        session_id: str,
        owner: Owner,
        egress: int,
        first_seq: int,
        batch: Sequence[Entry],
        on_outcome: OnAppended,
    ) -> bool:
        connection = self._connection
        if connection is None:
            return False
        keys = (f"jh:{{{session_id}}}", f"j:{{{session_id}}}")
        args = append_args(self._limits, owner, egress, first_seq, batch)
        command = _pack(("EVALSHA", _SCRIPT.sha, 2, *keys, *args))
        return connection.send(command, on_outcome)

    async def _keep(self) -> None:
        """Reconnect for ever: at once, then with a growing, jittered pause."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            self.reconnects += 1
            pause = _BACKOFF_FIRST_S
            while True:
                try:
                    await self._connect()
                    break
                except StoreUnavailable:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(pause * 2, _BACKOFF_MOST_S)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._address.connect(lambda: _Connection(self._timeout_s, self.stats))
                for command in (*self._address.greeting(), ("SCRIPT", "LOAD", _SCRIPT.source)):
                    await connection.ask(loop, command)
        except (OSError, TimeoutError, _Refused) as error:
            if connection is not None:
                connection.close()
            raise StoreUnavailable(f"journal: {error or type(error).__name__}") from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        connection.on_lost = self._on_lost
        self._connection = connection
        if connection.closed:  # between its last answer and here
            self._on_lost(connection)

    def _on_lost(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._lost.set()


class _Refused(Exception):
    """The server answered a greeting with an error (authentication, wrong database)."""


class _Connection(asyncio.Protocol):
    """One connection: commands out once per turn of the loop, replies matched by their order."""

    def __init__(self, timeout_s: float, stats: StoreStats) -> None:
        self._stats = stats
        self._replies = 0
        self._timed_from = 0.0
        """When the loop turn that is being timed was written; 0: none is."""
        self._timed_to = 0
        """The reply that ends it."""
        self.waiting: deque[tuple[OnAppended, int]] = deque()
        self.on_lost: Any = None
        self.closed = False
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader()
        self._out: list[bytes] = []
        self._bytes = 0
        self._asked: asyncio.Future[Any] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._heard = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._loop = asyncio.get_running_loop()

    async def ask(self, loop: asyncio.AbstractEventLoop, command: tuple[Any, ...]) -> Any:
        """One command and its answer, before the connection is put to use."""
        self._asked = loop.create_future()
        self._transport.write(_pack(command))
        try:
            answer = await self._asked
        finally:
            self._asked = None
        if isinstance(answer, hiredis.ReplyError):
            raise _Refused(str(answer))
        return answer

    def send(self, command: bytes, on_outcome: OnAppended) -> bool:
        size = len(command)
        if self.closed:
            return False
        if len(self.waiting) >= MAX_BATCHES or (self.waiting and self._bytes + size > MAX_BYTES):
            self._stats.journal_full += 1
            return False
        if not self._out:
            self._loop.call_soon(self._flush)
        if not self.waiting:
            self._heard = self._loop.time()
            if self._watchdog is None:
                self._watchdog = self._loop.call_later(self._timeout_s, self._watch)
        self._out.append(command)
        self.waiting.append((on_outcome, size))
        self._bytes += size
        return True

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not self.closed:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            if not self._timed_from:
                self._timed_from = self._loop.time()
                self._timed_to = self._replies + len(self.waiting)

    def _watch(self) -> None:
        self._watchdog = None
        if self.closed or not self.waiting:
            return
        due = self._heard + self._timeout_s - self._loop.time()
        if due <= 0:
            self._stats.failed(_SCRIPT.name, "timeout", len(self.waiting))
            self._transport.abort()
        else:
            self._watchdog = self._loop.call_later(due, self._watch)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._reader.feed(data)
        while True:
            try:
                reply = self._reader.gets()
            except hiredis.ProtocolError:
                self._transport.abort()
                return
            if reply is False:
                return self._timed()
            if self._asked is not None:
                if not self._asked.done():
                    self._asked.set_result(reply)
            elif self.waiting:
                callback, size = self.waiting.popleft()
                self._bytes -= size
                self._replies += 1
                self._tell(callback, self._outcome(reply, size))
            else:  # a reply that nobody asked for: what follows cannot be matched either
                self._transport.abort()
                return

    def _timed(self) -> None:
        if self._timed_from and self._replies >= self._timed_to:
            self._stats.journal_times.add(self._heard - self._timed_from)
            self._timed_from = 0.0

    def _tell(self, callback: OnAppended, outcome: AppendOutcome) -> None:
        """A callback that fails is its session's trouble: the replies behind it are due to others."""
        try:
            callback(outcome)
        except Exception as error:
            self._loop.call_exception_handler({"message": "journal outcome callback failed", "exception": error})

    def _outcome(self, reply: Any, size: int) -> AppendOutcome:
        stats = self._stats
        if isinstance(reply, hiredis.ReplyError):
            stats.failed(_SCRIPT.name, "server")
            # NOSCRIPT (flushed), LOADING, OOM, READONLY: what is behind it may have gone either way, and a new
            # connection loads the script again.
            self._transport.abort()
            return _UNKNOWN
        outcome = append_outcome(reply)
        if type(outcome) is Appended:
            stats.journal_appends += 1
            stats.journal_bytes += size
            stats.journal_trimmed += outcome.trimmed
        else:
            stats.refused(_SCRIPT.name, str(reply[0], "ascii"))
        return outcome

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def close(self) -> None:
        """Give the connection up at once."""
        self._transport.abort()
        self._end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(ConnectionResetError("the connection was lost"))
        if self.on_lost is not None:
            self.on_lost(self)
        waiting, self.waiting = self.waiting, deque()
        self._bytes = 0
        if waiting:
            self._stats.failed(_SCRIPT.name, "connection", len(waiting))
        for callback, _ in waiting:
            self._tell(callback, _UNKNOWN)
